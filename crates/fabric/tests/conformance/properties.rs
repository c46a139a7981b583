//! The properties of every rail, by module.

/// Runs the macro `$over` over the names of all properties.
macro_rules! every_property {
    ($over:ident) => {
        $over! {
            suite {
                a_rail_reports_its_kind
                frames_of_a_lane_arrive_in_order
                two_threads_at_full_speed_lose_and_mix_up_nothing
                frames_of_every_size_arrive_whole
                a_frame_that_is_too_long_is_refused_and_does_no_harm
                a_full_rail_refuses_then_resumes_and_loses_nothing
                a_poll_keeps_to_its_limit
                the_data_of_a_put_arrive_before_its_frame
                puts_and_frames_keep_their_order
                a_put_without_granules_may_be_large
                a_put_outside_its_window_is_refused_by_the_sender
                no_wake_up_is_lost_between_two_sleepers
                a_sender_asleep_on_a_full_rail_is_woken
                frames_before_the_end_are_delivered
                a_lost_rail_refuses
            }
            words {
                a_write_lands_and_announces_nothing
                a_frame_arrives_after_earlier_writes
                a_word_is_seen_whole
                a_write_into_a_granule_needs_its_generation_unless_memory_is_mapped
                access_outside_a_window_is_refused_and_changes_nothing
                words_are_added_to_and_swapped
                a_get_returns_the_bytes_of_the_window
                adding_from_both_sides_loses_nothing
                a_sleeper_is_woken_by_a_written_word
                a_peer_that_comes_back_finds_the_windows_over_a_new_rail
            }
            wordwise {
                every_word_under_a_put_is_seen_whole
                every_word_under_the_same_put_again_and_again_is_seen_whole
                a_put_is_in_place_and_counted_when_its_frame_arrives
                a_put_longer_than_a_wordwise_window_takes_is_refused
            }
        }
    };
}

pub(crate) use every_property;
