//! Tests of the decoder over valid and invalid bytes: cut, changed, repeated, sealed or in clear.

use plexus_sim::hostile;

use super::*;
use crate::WindowId;

const SEQUENCES: u32 = 40;

fn put(data: &[u8]) -> PutToSend<'_> {
    PutToSend { put: Put { window: WindowId(7), offset: 1 << 40, generation: 11, data }, announced: true }
}

/// The keys of the peer to which [`decode_any_sealed`] listens, and those of the listener.
fn keys_on(lane: Lane) -> (Sealer, Opener) {
    let [peer, own] = [[2, 1], [1, 2]].map(|[send, receive]| Seal::new([send; KEY_LEN], [receive; KEY_LEN]));
    (peer.split(lane).0, own.split(lane).1)
}

fn keys() -> (Sealer, Opener) {
    keys_on(Lane::Prompt)
}

/// A frame as it stands on the wire, without the data of its put.
fn frame(sealer: Option<&mut Sealer>, sequence: u32, text: &[u8], load: Option<&PutToSend<'_>>) -> Vec<u8> {
    frame_on(Lane::Prompt, sealer, sequence, text, load)
}

fn frame_on(
    lane: Lane,
    sealer: Option<&mut Sealer>,
    sequence: u32,
    text: &[u8],
    load: Option<&PutToSend<'_>>,
) -> Vec<u8> {
    let (head, body) = text.split_at(text.len() / 2);
    let mut bytes = Vec::new();
    match sealer {
        Some(sealer) => seal(sealer, lane, sequence, head, body, load, &mut bytes),
        None => {
            bytes.extend_from_slice(encode(lane, sequence, head, body, load).bytes());
            bytes.extend_from_slice(text);
        }
    }
    bytes
}

/// Frames as a stream. The sealed ones have no put, whose data would have to be decrypted in
/// between.
fn stream(lane: Lane, mut sealer: Option<&mut Sealer>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for sequence in 0..SEQUENCES {
        let text = vec![sequence as u8; 16 + sequence as usize * 7 % 300];
        let load = (sequence % 3 == 0 && sealer.is_none()).then(|| put(&[9; 100]));
        bytes.extend(frame_on(lane, sealer.as_deref_mut(), sequence, &text, load.as_ref()));
        bytes.extend_from_slice(load.map_or(&[], |load| load.put.data));
    }
    bytes
}

fn decoded(
    bytes: &[u8],
    lane: Lane,
    sequence: u32,
    opener: Option<&mut Opener>,
) -> Result<Decoded, &'static str> {
    decode(&mut bytes.to_vec(), lane, sequence, opener)
}

#[test]
fn encoded_frames_are_decoded() {
    let bytes = frame(None, 5, b"headbody!", Some(&put(b"data")));
    let Ok(Decoded::Frame { frame, end, target: Some(target), announced: true }) =
        decoded(&bytes, Lane::Prompt, 5, None)
    else {
        panic!()
    };
    assert_eq!((&bytes[frame.clone()], end), (&b"headbody!"[..], bytes.len()));
    let PutTarget { window, offset, len, generation, crc } = target;
    assert_eq!((window, offset, len, generation), (WindowId(7), 1 << 40, 4, 11));
    assert_eq!(crc, crc32c(b"data"));
    assert!(decoded(&bytes, Lane::Bulk, 5, None).is_err() && decoded(&bytes, Lane::Prompt, 6, None).is_err());
}

#[test]
fn sealed_frames_are_opened() {
    let (mut sealer, mut opener) = keys();
    for sequence in 0..3 {
        let mut bytes = frame(Some(&mut sealer), sequence, b"headbody!", Some(&put(b"data")));
        assert!(!bytes.windows(4).any(|bytes| bytes == b"body"));
        let Ok(Decoded::Frame { frame, end, target: Some(target), .. }) =
            decode(&mut bytes, Lane::Prompt, sequence, Some(&mut opener))
        else {
            panic!()
        };
        assert_eq!((&bytes[frame.clone()], end), (&b"headbody!"[..], frame.end + TAG_LEN));
        assert_eq!(
            (target.window, target.offset, target.len, target.generation),
            (WindowId(7), 1 << 40, 4, 11)
        );
    }
}

#[test]
fn a_write_is_a_put_that_nothing_announces() {
    let load = PutToSend { announced: false, ..put(b"data") };
    let bytes = frame(None, 5, b"", Some(&load));
    let Ok(Decoded::Frame { frame: found, target: Some(target), announced: false, .. }) =
        decoded(&bytes, Lane::Prompt, 5, None)
    else {
        panic!()
    };
    assert!(found.is_empty() && target.len == 4);
    let with_a_frame = frame(None, 5, b"head", Some(&load));
    assert_eq!(decoded(&with_a_frame, Lane::Prompt, 5, None), Err("an invalid header"));
}

#[test]
fn a_part_of_a_frame_gives_the_bytes_needed() {
    for sealed in [false, true] {
        let (mut sealer, mut opener) = keys();
        let bytes = frame(sealed.then_some(&mut sealer), 0, b"headbody", None);
        for cut in 0..bytes.len() {
            let decoded = decoded(&bytes[..cut], Lane::Prompt, 0, sealed.then_some(&mut opener));
            let Ok(Decoded::Needs(needed)) = decoded else { panic!("{cut}") };
            assert!(needed > cut && needed <= bytes.len());
        }
    }
}

#[test]
fn every_flipped_bit_is_detected() {
    for sealed in [false, true] {
        let bytes = frame(sealed.then_some(&mut keys().0), 0, b"headbody", Some(&put(b"")));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let decoded = decoded(&flipped, Lane::Prompt, 0, sealed.then_some(&mut keys().1));
            assert!(!matches!(decoded, Ok(Decoded::Frame { .. })), "bit {bit}, sealed: {sealed}");
        }
    }
}

/// Any record but the next one of the stream is refused, whatever number it states.
#[test]
fn repeated_swapped_dropped_and_cut_records_are_refused() {
    let mut sealer = keys().0;
    let mut numbered = |number: u32| frame(Some(&mut sealer), number, &[7; 60], None);
    let (first, second) = (numbered(0), numbered(1));
    let renumbered = |bytes: &[u8], number: u8| {
        let mut bytes = bytes.to_vec();
        bytes[8] = number;
        bytes
    };
    let refused = "a frame fails its seal";
    let mut fresh = keys().1;
    assert_eq!(decoded(&second, Lane::Prompt, 0, Some(&mut fresh)), Err("a frame out of sequence"));
    assert_eq!(decoded(&renumbered(&second, 0), Lane::Prompt, 0, Some(&mut fresh)), Err(refused));
    let mut after_first = keys().1;
    assert!(decoded(&first, Lane::Prompt, 0, Some(&mut after_first)).is_ok());
    assert_eq!(decoded(&first, Lane::Prompt, 1, Some(&mut after_first)), Err("a frame out of sequence"));
    assert_eq!(decoded(&renumbered(&first, 1), Lane::Prompt, 1, Some(&mut after_first)), Err(refused));
    let mut shorter = first.clone();
    shorter[0] -= 1;
    assert_eq!(decoded(&shorter, Lane::Prompt, 0, Some(&mut keys().1)), Err(refused));
    let mut other_flags = first.clone();
    other_flags[5] |= FLAG_PUT;
    other_flags[0] -= PUT_LEN as u8;
    assert_eq!(decoded(&other_flags, Lane::Prompt, 0, Some(&mut keys().1)), Err(refused));
}

#[test]
fn clear_and_sealed_refuse_each_other() {
    let clear = frame(None, 0, b"headbody", None);
    let sealed = frame(Some(&mut keys().0), 0, b"headbody", None);
    assert_eq!(decoded(&sealed, Lane::Prompt, 0, None), Err("a sealed frame on a rail in clear"));
    assert_eq!(
        decoded(&clear, Lane::Prompt, 0, Some(&mut keys().1)),
        Err("a frame in clear on a sealed rail")
    );
}

#[test]
fn the_length_on_the_wire_is_known_before_sending() {
    for (len, data) in [(0, 0), (50, 1), (50, PIECE), (50, PIECE + 1), (0, 3 * PIECE)] {
        let (text, data) = (vec![1; len], vec![2; data]);
        let load = put(&data);
        assert_eq!(total_len(len, None, false), frame(None, 0, &text, None).len());
        assert_eq!(total_len(len, Some(&load), false), frame(None, 0, &text, Some(&load)).len() + data.len());
        let mut sealer = keys().0;
        let mut sealed = frame(Some(&mut sealer), 0, &text, Some(&load));
        data.chunks(PIECE).for_each(|piece| seal_piece(&mut sealer, piece, &mut sealed));
        assert_eq!(total_len(len, Some(&load), true), sealed.len());
    }
}

#[test]
fn hostile_bytes_do_no_harm() {
    for lane in Lane::ALL {
        let good = stream(lane, None);
        let sealed = stream(lane, Some(&mut keys_on(lane).0));
        assert_eq!(decode_any(&good), SEQUENCES as usize);
        assert_eq!(decode_any_sealed(&sealed), SEQUENCES as usize);
        hostile(&[good], |bytes| assert!(decode_any(bytes) <= SEQUENCES as usize));
        hostile(&[sealed], |bytes| assert!(decode_any_sealed(bytes) <= SEQUENCES as usize));
    }
}
