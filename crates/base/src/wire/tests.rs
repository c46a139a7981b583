//! What is laid out comes back, and what is not laid out so is refused.

use super::*;
use crate::{Epoch, NodeId, WorkerId};

numbered! {
    enum Color as "color" { Red = 1, Blue = 7, }
}

layout! {
    struct Head: 12 { magic: [u8; 2], zero: Zeros<1>, color: Color, node: NodeId, worker: WorkerId, host: Option<NodeId>, is_last: bool, epoch: Epoch }
    #[derive(Default)]
    struct Pair: 8 { a: u32, b: u16, zero: Zeros<2> }
}

struct Point {
    x: u64,
    y: [u16; 2],
}

layout! { impl Point: 16 { x: u64, y: [u16; 2]; 4 } }

const HEAD: Head = Head {
    magic: *b"PL",
    zero: Zeros,
    color: Color::Blue,
    node: NodeId(15),
    worker: WorkerId(7),
    host: None,
    is_last: true,
    epoch: Epoch(0x0102_0304),
};

fn head(bytes: &[u8]) -> Result<Head, Fault> {
    decode("head", bytes, |reader| reader.take()).map_err(|error| error.fault)
}

#[test]
fn a_layout_has_its_fields_in_order_and_each_is_checked() {
    let good: [u8; 12] = encode(&HEAD);
    assert_eq!(good, [b'P', b'L', 0, 7, 15, 7, 255, 1, 4, 3, 2, 1]);
    assert_eq!(head(&good), Ok(HEAD));
    let cases = [
        (2, 1, "unused field"),
        (3, 2, "color"),
        (4, 16, "node"),
        (5, 8, "worker"),
        (6, 16, "node"),
        (7, 2, "yes or no"),
    ];
    for (at, value, field) in cases {
        let mut bad = good;
        bad[at] = value;
        assert_eq!(head(&bad), Err(Fault::Field(field)), "byte {at}");
    }
    assert_eq!(head(&good[1..]), Err(Fault::CutOff));
    assert_eq!(head(&[&good[..], &[0]].concat()), Err(Fault::Trailing));
}

#[test]
fn what_a_writer_puts_a_reader_takes() {
    let pairs = [Pair { a: 1, ..Pair::default() }, Pair { b: 2, ..Pair::default() }];
    let mut writer = Writer::with(&Point { x: 9, y: [3, 4] }, 16);
    pairs.iter().for_each(|pair| _ = writer.put(pair));
    writer.bytes(b"name").fill(40);
    let bytes = writer.finish();
    assert_eq!((bytes.len(), bytes[12]), (40, 0));
    let read = |bytes: &[u8]| {
        decode("point", bytes, |reader| {
            let Point { x, y } = reader.take()?;
            assert_eq!((x, y), (9, [3, 4]));
            let taken: Vec<Pair> = reader.list(2u8, Reader::take)?;
            assert_eq!(taken, pairs);
            assert_eq!(reader.bytes(4usize)?, b"name");
            Ok(reader.rest().len())
        })
    };
    assert_eq!(read(&bytes), Ok(4));
    assert_eq!(read(&bytes[..30]).unwrap_err().to_string(), "malformed point: it is cut off");
    let mut bad = bytes;
    bad[15] = 1;
    assert_eq!(read(&bad), Err(Fault::Field("unused field").of("point")));
    let endless: Result<Vec<u8>, _> = Reader::new(&bad).list(u64::MAX, Reader::take);
    assert_eq!(endless, Err(Fault::CutOff));
}

#[test]
fn changed_bytes_do_not_verify() {
    let mut inside: Vec<u8> = (0..40).collect();
    let mut behind = inside.clone();
    seal(&mut inside, 8);
    seal_behind(&mut behind);
    assert_eq!((verify(&inside, 8), verify_behind(&behind)), (Ok(()), Ok(())));
    for at in 0..40 {
        (inside[at], behind[at]) = (inside[at] ^ 1, behind[at] ^ 1);
        assert_eq!(
            (verify(&inside, 8), verify_behind(&behind)),
            (Err(Fault::Checksum), Err(Fault::Checksum))
        );
        (inside[at], behind[at]) = (inside[at] ^ 1, behind[at] ^ 1);
    }
    assert_eq!((verify(&inside[..11], 8), verify_behind(&[0; 3])), (Err(Fault::CutOff), Err(Fault::CutOff)));
}

#[test]
fn a_version_and_bits_are_as_they_are_said() {
    assert_eq!(require_version(2u8, 2u8), Ok(()));
    let newer = require_version(3u16, 2u16).unwrap_err().of("file").to_string();
    assert_eq!(newer, "malformed file: it has version 3, this program reads version 2");
    assert_eq!(bits([(true, 1), (false, 2), (true, 4)]), 5);
}
