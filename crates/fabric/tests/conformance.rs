//! One suite over every kind of rail: what the interconnect relies on, whatever a rail runs over.
//!
//! What only one kind can show (hostile memory, hostile bytes) is in `conformance/hostile.rs`; the end of a
//! peer's process, with a real one, in `conformance/death.rs`; what a rail knows of its path in `conformance/path.rs`.

#[path = "conformance/death.rs"]
mod death;
#[path = "conformance/hostile.rs"]
mod hostile;
#[path = "conformance/pairs.rs"]
mod pairs;
#[path = "conformance/path.rs"]
mod path;
#[path = "conformance/suite.rs"]
mod suite;
#[path = "conformance/words.rs"]
mod words;
#[path = "conformance/wordwise.rs"]
mod wordwise;

/// Where there is no libfabric, the test says so.
fn over_libfabric(provider: &'static str, property: impl Fn(pairs::Kind)) {
    let over = pairs::Kind::Ofi(provider);
    if over.is_here() {
        property(over);
    }
}

macro_rules! over_every_rail {
    ($($module:ident { $($property:ident)* })*) => {
        mod shm {
            $($(#[test] fn $property() { crate::$module::$property(crate::pairs::Kind::Shm); })*)*
        }
        mod sealed_tcp {
            $($(#[test] fn $property() { crate::$module::$property(crate::pairs::Kind::SealedTcp); })*)*
        }
        mod tcp {
            $($(#[test] fn $property() { crate::$module::$property(crate::pairs::Kind::Tcp); })*)*
        }
        mod ofi_tcp {
            $($(#[test] fn $property() { crate::over_libfabric("tcp", crate::$module::$property); })*)*
        }
        mod ofi_shm {
            $($(#[test] fn $property() { crate::over_libfabric("shm", crate::$module::$property); })*)*
        }
    };
}

over_every_rail! {
    suite {
        a_rail_says_what_it_is
        frames_of_a_lane_arrive_in_order
        two_threads_at_full_speed_lose_and_mix_up_nothing
        frames_of_every_size_arrive_whole
        a_frame_that_is_too_long_is_refused_and_does_no_harm
        a_full_rail_refuses_then_resumes_and_loses_nothing
        a_poll_keeps_to_its_limit
        the_data_of_a_put_are_there_when_its_frame_is
        puts_and_frames_keep_their_order
        a_put_without_granules_may_be_large
        a_put_outside_its_window_is_refused_by_the_sender
        no_wake_up_is_lost_between_two_sleepers
        a_sender_asleep_on_a_full_rail_is_woken
        what_arrived_before_the_end_is_delivered
        a_lost_rail_refuses
    }
    words {
        a_write_lands_and_announces_nothing
        a_frame_finds_what_was_written_before_it
        a_word_is_seen_whole
        a_write_into_a_granule_needs_its_generation_where_a_processor_stands_between
        what_is_not_in_the_window_is_refused_and_left_alone
        words_are_added_to_and_swapped
        a_get_brings_what_stands_there
        adding_from_both_sides_loses_nothing
        who_sleeps_for_a_word_is_woken_by_its_write
        a_peer_that_comes_back_finds_the_windows_over_a_new_rail
    }
    wordwise {
        every_word_under_a_put_is_seen_whole
        every_word_under_the_same_put_again_and_again_is_seen_whole
        what_was_put_is_there_and_counted_when_its_frame_is
        a_put_longer_than_a_wordwise_window_takes_is_refused
    }
}
