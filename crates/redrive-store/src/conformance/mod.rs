//! What every store must do, written once.
//!
//! A store shows that it keeps its promises by a [`Harness`] and one line in a test file, which becomes one test for each
//! promise; one that outlives its process adds [`Restart`] and a second line:
//!
//! ```
//! use redrive_store::conformance::{Harness, MAX_PAYLOAD};
//! use redrive_store::{SqliteOptions, SqliteStore, Store};
//! use std::sync::Arc;
//!
//! struct InMemory(Arc<dyn Store>);
//!
//! impl Harness for InMemory {
//!     async fn fresh() -> Self {
//!         let options = SqliteOptions { max_payload: MAX_PAYLOAD, ..SqliteOptions::default() };
//!         InMemory(Arc::new(SqliteStore::open(":memory:", options).unwrap()))
//!     }
//!
//!     fn store(&self) -> &Arc<dyn Store> {
//!         &self.0
//!     }
//! }
//!
//! redrive_store::conformance_tests!(InMemory); // and restart_conformance_tests! where something is left after the end
//! # fn main() {}
//! ```
//!
//! Nothing here knows which database is behind the trait. Every time is given, none is waited for. What the suite takes for
//! granted beside the words of the trait: claimed units are in the sink before the call that claimed them returns.

#![allow(clippy::unwrap_used)] // a panic is a broken promise, with its line

mod appending;
mod claiming;
mod closing;
mod counting;
mod dead_letters;
mod deliveries;
mod documents;
mod due;
mod handled;
mod holding;
mod looking;
mod purging;
mod recovery;
mod redriving;
mod replaying;
mod scene;
mod settling;
mod subscriptions;
mod walk;

pub use walk::walk_with_crashes;

use std::future::Future;
use std::sync::Arc;

use crate::store::Store;

/// The largest payload that a store under test takes, in bytes. Small, so that one byte more is cheap.
pub const MAX_PAYLOAD: usize = 64 << 10;

/// A store under test.
pub trait Harness: Sized + Send + Sync {
    /// Opens a store of its own, with nothing in it, that takes payloads up to [`MAX_PAYLOAD`].
    fn fresh() -> impl Future<Output = Self> + Send;

    /// The store.
    fn store(&self) -> &Arc<dyn Store>;
}

/// A store under test that outlives its process.
pub trait Restart: Harness {
    /// Ends the store as `kill -9` ends its process, with nothing settled and nothing closed, and opens it anew as the next
    /// process would. Whatever the old one had claimed is now held by the dead. Nobody else holds the `Arc` at this time.
    fn restart(&mut self) -> impl Future<Output = ()> + Send;
}

/// All promises, each in its module: the one list that the functions and the tests are made from. What is written but not
/// listed is dead code, and the compiler says so.
#[doc(hidden)]
#[macro_export]
macro_rules! __for_every_store {
    ([$($then:tt)*] $($argument:ty)?) => {
        $($then)*! { [$($argument)?]
            appending {
                an_event_is_stored_whole_and_read_back
                the_same_id_is_stored_once
                the_same_id_twice_in_a_batch_is_stored_once
                the_same_id_from_many_tasks_is_stored_once
                many_tasks_append_at_once
                a_large_batch_is_answered_in_its_order
                a_batch_is_all_or_none
                a_batch_with_a_payload_that_is_too_large_stores_nothing
                metadata_and_batches_have_their_limits
                the_largest_payload_is_stored
                an_empty_batch_stores_nothing
                what_goes_to_nobody_is_over_once_it_is_stored
            }
            claiming {
                appended_work_is_claimed_at_once_when_a_sink_is_attached
                appended_work_waits_when_no_sink_is_attached
                appended_work_beyond_the_room_waits
                a_duplicate_takes_no_room
                what_is_due_is_claimed_once
                many_concurrent_claims_hand_each_unit_out_once
                a_claim_respects_the_room_in_the_sink
                a_settled_unit_gives_its_room_back
                a_dropped_claim_gives_its_room_back_and_stays_claimed
                a_new_sink_takes_over
                detaching_the_sink_at_any_moment_strands_nothing
                a_heartbeat_leaves_everything_as_it_is
                nothing_is_claimed_before_it_is_due
                work_is_claimed_in_order_of_its_due_time
                a_long_queue_is_claimed_to_its_end
            }
            due {
                the_hint_is_the_earliest_due_time
                whoever_sleeps_by_the_hint_is_woken_when_it_moves_closer
                work_without_room_is_in_the_hint
                what_comes_back_later_is_in_the_hint
                refreshing_finds_the_earliest_due_time
            }
            settling {
                done_is_recorded_in_every_column
                retry_is_recorded_in_every_column
                every_retry_adds_to_the_errors
                defer_at_the_first_attempt_charges_nothing
                defer_at_a_later_attempt_charges_nothing
                dead_is_recorded_in_every_column
                dead_at_the_first_attempt_was_not_retried
                dead_without_a_failure_adds_no_error
                every_reason_to_die_has_its_name
                every_class_of_failure_is_kept
                errors_are_kept_letter_by_letter
                many_settlements_at_once_keep_apart
                settlements_at_once_keep_their_own_times
                a_running_event_is_not_shown_as_due
                what_is_told_of_an_attempt_is_kept
                the_attempts_of_one_subscription_are_listed_newest_first
            }
            holding {
                what_is_held_waits_until_it_is_called_up
                what_is_called_up_is_the_oldest_and_only_ones_own
                what_is_held_at_a_later_attempt_is_charged_nothing
                what_is_held_is_not_in_the_hint
                of_many_who_call_up_each_gets_its_own
                nothing_is_called_up_that_there_is_no_room_for
                several_are_called_up_at_once_each_as_many_as_it_wants
                who_has_nothing_takes_no_place_from_others
                what_is_due_to_one_is_held_without_being_claimed
            }
            replaying {
                what_was_handled_goes_to_one_again
                what_was_given_up_goes_to_one_again
                what_one_never_had_goes_to_it
                what_is_on_its_way_is_left_alone
                an_event_that_died_as_a_whole_stays_dead_beside_its_replay
                of_many_who_replay_it_is_owed_once
                what_is_not_there_cannot_be_replayed
            }
            deliveries {
                what_is_parked_goes_to_its_addressee_and_the_event_ends_with_the_last
                a_parked_delivery_is_retried_on_its_own
                what_is_parked_goes_on_where_the_event_stood
                a_deferred_delivery_is_charged_nothing
                a_delivery_that_is_given_up_takes_the_event_with_it
                a_dead_event_still_delivers_what_was_parked
                an_addressed_event_is_claimed_for_each_addressee
                an_addressed_event_waits_where_there_is_no_room
                an_addressed_event_is_due_when_it_says
                each_addressee_is_retried_on_its_own
                a_delivery_that_dies_at_its_first_attempt_was_not_retried
                an_event_is_done_only_when_nothing_of_it_is_open
                what_dies_beside_a_redriven_event_can_be_redriven
                an_event_that_is_owed_to_who_has_given_up_meanwhile_is_over
                what_is_parked_again_begins_anew
                what_is_owed_at_the_same_instant_is_claimed_in_the_order_in_which_it_was_owed
            }
            handled {
                who_has_handled_an_event_is_known_at_its_next_attempts
                who_has_handled_one_event_has_not_handled_another
                who_has_handled_an_event_is_known_when_it_is_sent_back
                who_has_a_delivery_of_its_own_need_not_handle_what_is_sent_back
            }
            subscriptions {
                subscriptions_are_on_record
                a_new_pattern_keeps_the_id
                one_that_is_taken_down_many_times_at_once_is_on_record_once
                unregistering_says_whether_there_was_one
                what_an_unregistered_subscription_is_owed_stays
            }
            looking {
                an_unknown_event_is_said_to_be_unknown
                events_are_listed_newest_first
                events_are_filtered_by_status_and_type
                pages_of_events_show_each_once_while_more_are_published
                events_in_short_are_all_but_payloads
            }
            counting {
                an_empty_store_counts_nothing
                depth_and_stats_agree_with_a_census
            }
            dead_letters {
                dead_letters_are_listed_newest_first
                the_first_hundred_are_listed_by_default
                offset_and_limit_cut_pages_out
                pages_by_cursor_show_each_dead_letter_once
                pages_by_cursor_show_each_once_while_more_die
                a_cursor_survives_as_text
                each_subscription_that_gave_up_has_its_entry
                pages_by_cursor_never_lose_an_entry_of_an_event
                behind_an_event_there_is_nothing_of_it
                pages_by_offset_never_repeat_an_entry_of_an_event
                a_page_holds_no_more_than_its_limit
                dead_letters_are_filtered
                text_is_searched_as_it_is
                text_is_searched_in_every_error
                groups_gather_errors_of_one_kind
                groups_are_filtered_like_the_list
                what_is_not_dead_is_no_dead_letter
                dead_letters_in_short_are_all_but_payloads
            }
            redriving {
                a_redriven_event_begins_anew
                a_redriven_event_can_die_again
                a_redriven_event_waits_for_its_time
                a_redriven_event_can_have_another_payload
                a_payload_that_is_too_large_is_refused_and_the_event_stays_dead
                only_what_is_dead_can_be_redriven
                of_many_who_redrive_one_does
                only_the_subscriptions_that_gave_up_are_redriven
                only_what_a_filter_means_is_redriven
                a_filter_that_means_all_of_an_event_redrives_all_of_it
                what_was_given_up_as_a_whole_goes_back_as_a_whole
                what_one_gave_up_beside_the_whole_goes_back_alone
                what_no_filter_means_is_not_redriven
            }
            purging {
                purging_dead_events_includes_the_instant_itself
                purging_dead_events_leaves_everything_else
                a_dead_event_is_purged_once_with_all_its_entries
                purging_done_events_excludes_the_instant_itself
                purging_done_events_stops_at_the_limit
                purging_done_events_leaves_everything_else
                purging_done_events_finds_what_was_published_out_of_order
                keeping_order_deletes_what_was_kept_long_enough
                a_purged_id_can_be_stored_again
            }
            documents {
                a_document_is_stored_whole_and_read_back
                a_key_is_taken_once
                a_change_counts_the_version
                who_has_not_seen_the_last_version_changes_nothing
                of_two_who_change_the_same_version_one_does
                a_removed_document_is_gone
                documents_are_listed_by_kind_in_the_order_of_their_keys
                a_body_that_is_too_large_or_no_json_is_refused
            }
            closing {
                a_closed_store_refuses_everything
                closing_twice_is_harmless
            }
            walk {
                any_history_agrees_with_the_model
            }
        }
    };
}

/// The promises of a store that outlives its process. See `__for_every_store`.
#[doc(hidden)]
#[macro_export]
macro_rules! __for_every_lasting_store {
    ([$($then:tt)*] $($argument:ty)?) => {
        $($then)*! { [$($argument)?]
            recovery {
                everything_is_there_after_a_restart
                recovery_charges_what_was_running_and_nothing_else
                recovery_without_anything_running_changes_nothing
                what_was_recovered_is_claimed_as_its_next_attempt
                what_was_running_at_two_deaths_is_a_suspect
                suspects_are_claimed_one_by_one_where_there_is_room
                a_suspect_that_is_retried_is_claimed_like_any_other
                a_suspect_that_was_not_tried_is_one_when_it_comes_back
                what_is_parked_of_a_suspect_is_one
                a_suspect_is_listed_as_pending
                a_late_settlement_changes_nothing
                a_late_success_does_not_end_the_next_attempt
                what_was_acknowledged_while_closing_is_there
            }
            handled {
                who_has_handled_an_event_is_known_after_a_restart
                a_late_settlement_says_nothing_about_who_has_handled_it
            }
            holding {
                what_was_called_up_by_a_process_that_died_is_due_again
            }
            documents {
                documents_outlive_the_process
            }
            walk {
                any_history_with_crashes_agrees_with_the_model
            }
        }
    };
}

macro_rules! functions {
    ([] $($module:ident { $($promise:ident)* })*) => { $($(
        #[doc = concat!("Panics unless `", stringify!($promise), "`.")]
        pub async fn $promise<H: super::Harness>() {
            super::$module::$promise(H::fresh().await.store()).await;
        }
    )*)* };
}

macro_rules! restart_functions {
    ([] $($module:ident { $($promise:ident)* })*) => { $($(
        #[doc = concat!("Panics unless `", stringify!($promise), "`.")]
        pub async fn $promise<H: super::Restart>() {
            super::$module::$promise(&mut H::fresh().await).await;
        }
    )*)* };
}

/// One function for each promise; its name is the promise. [`conformance_tests!`](crate::conformance_tests) and
/// [`restart_conformance_tests!`](crate::restart_conformance_tests) make a test of each.
pub mod promise {
    __for_every_store!([functions]);
    __for_every_lasting_store!([restart_functions]);
}

/// One test for each promise that every store makes. See the [suite](crate::conformance). Needs `tokio` with `macros` and
/// `rt-multi-thread`.
#[macro_export]
macro_rules! conformance_tests {
    ($harness:ty) => {
        $crate::__for_every_store!([$crate::__tests] $harness);
    };
}

/// One test for each promise of a store that outlives its process, beside [`conformance_tests!`](crate::conformance_tests).
#[macro_export]
macro_rules! restart_conformance_tests {
    ($harness:ty) => {
        $crate::__for_every_lasting_store!([$crate::__tests] $harness);
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __tests {
    ([$harness:ty] $($module:ident { $($promise:ident)* })*) => { $($(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $promise() {
            $crate::conformance::promise::$promise::<$harness>().await;
        }
    )*)* };
}
