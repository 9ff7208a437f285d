//! The conformance suite: one set of tests that every store must pass.
//!
//! A store implements [`Harness`] and adds one line to a test file, which becomes one test for each promise. A store that survives
//! its process implements [`Restart`] and adds a second line:
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
//! redrive_store::conformance_tests!(InMemory); // and restart_conformance_tests! for a store that survives its process
//! # fn main() {}
//! ```
//!
//! The suite does not know which database is behind the traits. It passes every time as an argument and never sleeps. It relies on
//! one property that the traits do not state: claims are in the sink before the call that claimed them returns.

#![allow(clippy::unwrap_used)] // a panic is a broken promise, with its line

mod appending;
mod backlog;
mod claiming;
mod closing;
mod counting;
mod dead_letters;
mod deliveries;
mod documents;
mod due;
mod handled;
mod leasing;
mod purging;
mod reading;
mod recovery;
mod redriving;
mod replaying;
mod scene;
mod settling;
mod subscriptions;
mod walk;
mod walk_model;

pub use walk::walk_with_crashes;

use std::future::Future;
use std::sync::Arc;

use crate::store::Store;

/// Maximum payload size of a store under test, in bytes. Small, so that exceeding it is cheap.
pub const MAX_PAYLOAD: usize = 64 << 10;

/// Opens a store under test.
pub trait Harness: Sized + Send + Sync {
    /// Opens an empty store that accepts payloads up to [`MAX_PAYLOAD`].
    fn fresh() -> impl Future<Output = Self> + Send;

    /// Returns the store.
    fn store(&self) -> &Arc<dyn Store>;
}

/// A store under test that survives its process.
pub trait Restart: Harness {
    /// Ends the store as `kill -9` would, without settling or closing anything, and opens it again as the next process would. The
    /// claims of the old store belong to a dead process then. No other `Arc` of the store exists at this time.
    fn restart(&mut self) -> impl Future<Output = ()> + Send;
}

/// Lists all promises by module. The functions and the tests are generated from this list; a promise that is missing here is dead
/// code, and the compiler warns.
#[doc(hidden)]
#[macro_export]
macro_rules! __for_every_store {
    ([$($then:tt)*] $($argument:ty)?) => {
        $($then)*! { [$($argument)?]
            appending {
                an_event_is_stored_and_read_back
                the_same_id_is_stored_once
                the_same_id_twice_in_a_batch_is_stored_once
                the_same_id_from_many_tasks_is_stored_once
                many_tasks_append_at_once
                a_large_batch_is_answered_in_order
                a_batch_is_all_or_none
                a_batch_with_a_payload_that_is_too_large_stores_nothing
                metadata_and_batches_have_limits
                the_largest_payload_is_stored
                an_empty_batch_stores_nothing
                an_event_without_subscriptions_is_done_once_it_is_stored
                taken_ids_are_those_of_events_with_another_type_or_payload
                a_batch_with_the_id_of_another_event_stores_nothing
                a_batch_races_with_another_event_of_its_id
            }
            claiming {
                appended_work_is_claimed_at_once_when_a_sink_is_attached
                appended_work_waits_when_no_sink_is_attached
                appended_work_beyond_the_free_slots_waits
                a_duplicate_takes_no_slot
                due_work_is_claimed_once
                concurrent_claims_hand_out_each_delivery_once
                a_claim_never_exceeds_the_free_slots
                a_settled_claim_frees_its_slot
                a_dropped_claim_frees_its_slot_and_stays_claimed
                a_new_sink_replaces_the_old_one
                detaching_the_sink_at_any_time_loses_no_claim
                a_heartbeat_changes_no_event
                nothing_is_claimed_before_it_is_due
                work_is_claimed_in_the_order_of_its_due_time
                deliveries_are_claimed_before_events_and_retries_by_their_due_time
                a_long_queue_is_claimed_completely
            }
            due {
                the_hint_is_the_earliest_due_time
                an_earlier_due_time_wakes_a_sleeper
                work_without_a_slot_is_in_the_hint
                retries_and_parked_deliveries_are_in_the_hint
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
                every_dead_letter_reason_has_its_name
                every_class_of_failure_is_kept
                errors_are_stored_verbatim
                concurrent_settlements_do_not_mix
                concurrent_settlements_keep_their_own_times
                a_running_event_is_not_shown_as_due
                the_details_of_an_attempt_are_stored
                the_attempts_of_one_subscription_are_listed_newest_first
            }
            backlog {
                a_backlog_delivery_waits_until_the_backlog_is_claimed
                a_backlog_claim_takes_the_oldest_of_its_subscription
                deferring_a_retry_to_the_backlog_charges_no_attempt
                the_backlog_is_not_in_the_hint
                concurrent_backlog_claims_share_no_delivery
                a_backlog_claim_never_exceeds_the_free_slots
                several_backlogs_are_claimed_in_one_call
                an_empty_backlog_takes_no_slot_from_others
                due_deliveries_are_deferred_to_the_backlog_without_a_claim
            }
            leasing {
                a_leased_delivery_is_claimed_for_its_consumer_once
                a_leased_delivery_occupies_no_slot_and_is_in_processing
                a_lease_that_has_ended_is_claimed_like_other_due_work
                an_extended_lease_ends_later
                a_lease_has_one_token
                many_leases_are_ended_at_once_in_the_order_of_the_tokens
                consumers_that_share_a_token_end_the_lease_once
                extensions_and_acks_of_the_same_leases_do_not_block_each_other
                a_leased_delivery_is_not_deferred_to_the_backlog
            }
            replaying {
                a_handled_event_is_replayed_to_one_subscription
                a_dead_delivery_is_replayed_to_its_subscription
                an_event_is_replayed_to_a_new_subscription
                replaying_an_open_delivery_changes_nothing
                a_dead_event_stays_dead_beside_its_replay
                concurrent_replays_make_one_delivery
                an_unknown_event_cannot_be_replayed
            }
            deliveries {
                an_event_with_parked_deliveries_ends_with_the_last_of_them
                a_delivery_shows_whether_it_is_running
                a_parked_delivery_is_retried_on_its_own
                a_parked_delivery_keeps_the_attempts_of_its_event
                an_event_counts_the_failed_attempts_of_its_deliveries
                an_event_counts_the_failed_attempts_before_and_after_it_was_parked
                a_claim_knows_the_errors_of_earlier_attempts
                deferring_a_delivery_charges_no_attempt
                a_dead_delivery_makes_the_event_dead
                a_dead_event_still_delivers_its_parked_deliveries
                an_event_is_claimed_for_each_named_subscription
                deliveries_without_a_slot_wait
                deliveries_are_due_at_the_due_time_of_the_event
                each_subscription_is_retried_on_its_own
                a_delivery_that_dies_at_its_first_attempt_was_not_retried
                an_event_is_done_only_when_no_delivery_is_open
                a_delivery_that_dies_beside_a_redriven_event_can_be_redriven
                an_event_ends_if_its_parked_delivery_died_meanwhile
                a_delivery_that_is_parked_again_starts_over
                deliveries_due_at_the_same_time_are_claimed_in_the_order_of_storing
            }
            handled {
                a_retry_knows_the_subscriptions_that_handled_the_event
                handled_subscriptions_are_kept_per_event
                a_redrive_knows_the_subscriptions_that_handled_the_event
                a_redrive_skips_subscriptions_with_a_delivery_of_their_own
            }
            subscriptions {
                subscriptions_are_on_record
                a_new_pattern_keeps_the_id
                concurrent_registrations_make_one_record
                unregistering_returns_whether_the_subscription_existed
                open_deliveries_of_an_unregistered_subscription_stay
                the_backlog_of_an_unregistered_subscription_is_due
                maintenance_makes_the_backlog_of_an_unregistered_subscription_due
            }
            reading {
                an_unknown_event_is_not_found
                events_are_listed_newest_first
                events_are_filtered_by_status_and_type
                pages_show_each_event_once_while_more_are_published
                event_summaries_have_every_field_but_the_payload
            }
            counting {
                an_empty_store_counts_nothing
                depth_and_stats_agree_with_a_full_count
                waiting_deliveries_are_counted_by_subscription_with_the_age_of_the_oldest
            }
            dead_letters {
                dead_letters_are_listed_newest_first
                the_first_hundred_are_listed_by_default
                offset_and_limit_select_a_page
                pages_by_cursor_show_each_dead_letter_once
                pages_by_cursor_show_each_dead_letter_once_while_more_die
                a_cursor_survives_as_text
                each_dead_delivery_has_its_own_dead_letter
                pages_by_cursor_show_every_dead_letter_of_an_event
                a_cursor_behind_an_event_skips_all_its_dead_letters
                pages_by_offset_never_repeat_a_dead_letter
                a_page_holds_no_more_than_its_limit
                dead_letters_are_filtered
                text_is_searched_verbatim
                text_is_searched_in_every_error
                errors_of_one_kind_are_one_group
                dead_letters_are_grouped_by_target_and_http_status
                groups_are_filtered_like_the_list
                only_dead_events_have_dead_letters
                dead_letter_summaries_have_every_field_but_the_payload
            }
            redriving {
                a_redriven_event_starts_over
                a_redriven_event_can_die_again
                a_redriven_event_is_due_at_the_given_time
                a_redriven_event_can_get_a_new_payload
                a_payload_that_is_too_large_is_refused_and_the_event_stays_dead
                only_dead_events_can_be_redriven
                only_one_of_concurrent_redrives_succeeds
                a_redriven_parked_event_is_pending_until_its_delivery_is_claimed
                only_dead_deliveries_are_redriven
                only_dead_letters_that_match_the_filter_are_redriven
                a_filter_that_matches_every_dead_letter_redrives_the_whole_event
                a_dead_letter_for_the_whole_event_redrives_the_whole_event
                a_dead_delivery_beside_a_dead_event_is_redriven_alone
                a_filter_without_a_match_redrives_nothing
            }
            purging {
                purging_dead_events_includes_the_instant_itself
                purging_dead_events_leaves_everything_else
                a_dead_event_is_purged_with_all_its_dead_letters
                purging_done_events_excludes_the_instant_itself
                purging_done_events_stops_at_the_limit
                purging_done_events_leaves_everything_else
                purging_done_events_finds_events_published_out_of_order
                maintenance_deletes_events_after_their_retention
                a_purged_id_can_be_stored_again
            }
            documents {
                a_document_is_stored_and_read_back
                a_document_key_is_unique
                a_change_increments_the_version
                a_change_based_on_an_old_version_is_refused
                only_one_of_concurrent_changes_to_a_version_succeeds
                a_removed_document_is_gone
                documents_are_listed_by_kind_in_the_order_of_their_keys
                a_body_that_is_too_large_or_no_json_is_refused
            }
            closing {
                a_closed_store_refuses_everything
                closing_twice_is_harmless
            }
            walk {
                random_operations_agree_with_the_model
            }
        }
    };
}

/// Lists the promises of a store that survives its process. See `__for_every_store`.
#[doc(hidden)]
#[macro_export]
macro_rules! __for_every_lasting_store {
    ([$($then:tt)*] $($argument:ty)?) => {
        $($then)*! { [$($argument)?]
            recovery {
                a_restart_keeps_everything
                recovery_charges_running_work_and_nothing_else
                recovery_without_anything_running_changes_nothing
                recovered_work_is_claimed_as_its_next_attempt
                work_that_was_running_at_two_crashes_is_a_suspect
                suspects_are_claimed_one_at_a_time
                suspect_events_are_claimed_before_suspect_deliveries_each_by_due_time
                a_retried_suspect_is_no_suspect_any_more
                a_released_suspect_is_ordinary_work_and_is_charged_nothing
                a_deferred_suspect_stays_a_suspect
                a_parked_delivery_of_a_suspect_is_a_suspect
                a_suspect_is_listed_as_pending
                a_late_settlement_changes_nothing
                a_late_success_does_not_end_the_next_attempt
                events_acknowledged_while_closing_are_stored
            }
            handled {
                a_restart_keeps_the_subscriptions_that_handled_the_event
                a_late_settlement_adds_no_handled_subscription
            }
            backlog {
                a_backlog_delivery_claimed_by_a_dead_process_is_due_again
                a_backlog_delivery_of_a_suspect_is_claimed_from_the_backlog
            }
            leasing {
                a_lease_survives_a_restart
                an_ack_that_a_crash_interrupted_is_recovered
            }
            documents {
                documents_survive_a_restart
            }
            walk {
                random_operations_with_crashes_agree_with_the_model
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

/// One function per promise, named after it. [`conformance_tests!`](crate::conformance_tests) and
/// [`restart_conformance_tests!`](crate::restart_conformance_tests) make a test of each.
pub mod promise {
    __for_every_store!([functions]);
    __for_every_lasting_store!([restart_functions]);
}

/// Generates one test for each promise of every store. See the [suite](crate::conformance). Needs `tokio` with `macros` and
/// `rt-multi-thread`.
#[macro_export]
macro_rules! conformance_tests {
    ($harness:ty) => {
        $crate::__for_every_store!([$crate::__tests] $harness);
    };
}

/// Generates one test for each promise of a store that survives its process, beside [`conformance_tests!`](crate::conformance_tests).
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
