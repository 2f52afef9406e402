//! Filters: which jobs a list shows, and an operation on many works on.

use std::ops::{Bound, RangeBounds};

use serde::{Deserialize, Serialize};

#[cfg(doc)]
use crate::client::Client;
use crate::job::{ErrorClass, JobId, Phase, Status, Verdict};
use crate::list::JobSummary;

/// A time from, and up to but without, in UTC milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Span {
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<i64>,
}

impl Span {
    fn of(range: &impl RangeBounds<i64>) -> Self {
        let from = match range.start_bound() {
            Bound::Included(at) => Some(*at),
            Bound::Excluded(at) => Some(at.saturating_add(1)),
            Bound::Unbounded => None,
        };
        let before = match range.end_bound() {
            Bound::Included(at) => Some(at.saturating_add(1)),
            Bound::Excluded(at) => Some(*at),
            Bound::Unbounded => None,
        };
        Self { from, before }
    }

    /// Whether a time is within; a missing one is in no span but the whole.
    fn has(self, at: Option<i64>) -> bool {
        let Some(at) = at else { return self == Self::default() };
        self.from.is_none_or(|from| from <= at) && self.before.is_none_or(|before| at < before)
    }
}

/// Declares the conditions of a [`Filter`]: those of which a job must meet one of several
/// values, and those on a time.
macro_rules! conditions {
    (
        one_of { $($(#[$doc:meta])* $name:ident: $value:ty = |$job:ident| $of:expr;)+ }
        texts { $($(#[$tdoc:meta])* $text:ident = |$tjob:ident| $tof:expr;)+ }
        spans { $($(#[$sdoc:meta])* $span:ident = |$sjob:ident| $sof:expr;)+ }
    ) => {
        /// Which jobs: those that meet every condition. Of a condition that is given several times
        /// one value must fit; without any condition all jobs do.
        ///
        /// ```
        /// use leasehold::{Filter, Phase};
        ///
        /// let filter = Filter::new().phase(Phase::Dead).phase(Phase::Parked).kind("mail");
        /// assert_eq!(
        ///     serde_json::to_string(&filter).unwrap(),
        ///     r#"{"phase":["dead","parked"],"kind":["mail"]}"#
        /// );
        /// ```
        ///
        /// Specified in SEMANTICS.md, “Lists and bulk operations”.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        #[must_use]
        pub struct Filter {
            $(#[serde(skip_serializing_if = "Vec::is_empty")] $name: Vec<$value>,)+
            $(#[serde(skip_serializing_if = "Vec::is_empty")] $text: Vec<String>,)+
            $(#[serde(skip_serializing_if = "Option::is_none")] $span: Option<Span>,)+
        }

        impl Filter {
            $($(#[$doc])*
            pub fn $name(mut self, value: $value) -> Self {
                self.$name.push(value);
                self
            })+

            $($(#[$tdoc])*
            pub fn $text(mut self, value: impl Into<String>) -> Self {
                self.$text.push(value.into());
                self
            })+

            $($(#[$sdoc])*
            pub fn $span(mut self, range: impl RangeBounds<i64>) -> Self {
                self.$span = Some(Span::of(&range));
                self
            })+

            /// Whether it has no condition: a time without bounds is none.
            pub(crate) fn is_empty(&self) -> bool {
                $(self.$name.is_empty() &&)+
                $(self.$text.is_empty() &&)+
                $(self.$span.unwrap_or_default() == Span::default() &&)+
                true
            }

            /// Whether a job meets it.
            #[must_use]
            pub fn matches(&self, job: &JobSummary) -> bool {
                $({
                    let $job = job;
                    if !self.$name.is_empty() {
                        let value: Option<$value> = $of;
                        if !value.is_some_and(|value| self.$name.contains(&value)) {
                            return false;
                        }
                    }
                })+
                $({
                    let $tjob = job;
                    if !self.$text.is_empty() {
                        let value: Option<&str> = $tof;
                        if !value.is_some_and(|value| self.$text.iter().any(|one| one == value)) {
                            return false;
                        }
                    }
                })+
                $({
                    let $sjob = job;
                    if self.$span.is_some_and(|span| !span.has($sof)) {
                        return false;
                    }
                })+
                true
            }
        }
    };
}

conditions! {
    one_of {
        /// What it is doing at the time of the look.
        phase: Phase = |job| Some(job.phase);
        /// Its status.
        status: Status = |job| Some(job.status);
        /// Why it failed for good.
        verdict: Verdict = |job| job.verdict;
        /// How its last error was to be treated.
        error_class: ErrorClass = |job| job.error_class;
        /// Its priority.
        priority: i64 = |job| Some(job.priority);
        /// Its id.
        id: JobId = |job| Some(job.id.clone());
        /// The job that it was made after.
        copy_of: JobId = |job| job.copy_of.clone();
    }
    texts {
        /// Its kind.
        kind = |job| Some(&*job.kind);
        /// Its queue.
        queue = |job| Some(&*job.queue);
        /// Whom it is for. For jobs without a tenant, see [`Client::scoped`].
        tenant = |job| job.tenant.as_deref();
        /// Whom it is for, below the tenant.
        organization = |job| job.organization.as_deref();
        /// Why it was enqueued.
        reason = |job| job.reason.as_deref();
        /// What sort of thing it is about.
        subject_type = |job| job.subject_type.as_deref();
        /// Which thing it is about.
        subject_id = |job| job.subject_id.as_deref();
        /// Who holds it, or held it last.
        owner = |job| job.owner.as_deref();
        /// The application's code of its last error.
        error_code = |job| job.error_code.as_deref();
        /// Its idempotency key.
        idempotency_key = |job| job.idempotency_key.as_deref();
        /// Its dedup key, whether it is live or not.
        dedup_key = |job| job.dedup_key.as_deref();
        /// Its lock key, whether it is live or not.
        lock_key = |job| job.lock_key.as_deref();
        /// Its limit key.
        limit_key = |job| job.limit_key.as_deref();
    }
    spans {
        /// When it was enqueued, in UTC milliseconds.
        created_at = |job| Some(job.created_at);
        /// When it is due, in UTC milliseconds.
        run_at = |job| Some(job.run_at);
        /// When it was last written, in UTC milliseconds.
        updated_at = |job| Some(job.updated_at);
        /// When it was first claimed, in UTC milliseconds.
        started_at = |job| job.started_at;
        /// When it ended, in UTC milliseconds.
        finished_at = |job| job.finished_at;
        /// When somebody asked for it to be cancelled, in UTC milliseconds.
        cancel_requested_at = |job| job.cancel_requested_at;
        /// Since when it waits for a person, in UTC milliseconds.
        parked_at = |job| job.parked_at;
    }
}

impl Filter {
    /// All jobs.
    pub fn new() -> Self {
        Self::default()
    }

    /// Its ids, none where it says nothing of them.
    pub(crate) fn ids(&self) -> &[JobId] {
        &self.id
    }

    /// Its kinds, none where it says nothing of them.
    pub(crate) fn kinds(&self) -> &[String] {
        &self.kind
    }

    /// Its one subject, where it has one.
    pub(crate) fn one_subject(&self) -> Option<&str> {
        match &self.subject_id[..] {
            [one] => Some(one),
            _ => None,
        }
    }

    /// Its one tenant and organization, where it has both.
    pub(crate) fn one_tenant(&self) -> Option<(&str, &str)> {
        match (&self.tenant[..], &self.organization[..]) {
            ([tenant], [organization]) => Some((tenant, organization)),
            _ => None,
        }
    }

    /// The statuses that it leaves possible.
    pub(crate) fn statuses(&self) -> Vec<Status> {
        let of_phases = |status: &Status| {
            self.phase.is_empty()
                || self.phase.iter().any(|phase| match phase {
                    Phase::Scheduled | Phase::Retrying | Phase::Ready => *status == Status::Pending,
                    Phase::Leased | Phase::Orphaned => *status == Status::Running,
                    Phase::Completed => *status == Status::Completed,
                    Phase::Cancelled => *status == Status::Cancelled,
                    Phase::Dead | Phase::Parked => *status == Status::Failed,
                })
        };
        let given = |status: &Status| self.status.is_empty() || self.status.contains(status);
        Status::ALL.iter().copied().filter(given).filter(of_phases).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_its_beginning_and_not_its_end() {
        let span = Span::of(&(5..7));
        let within: Vec<_> = (4..=7).filter(|at| span.has(Some(*at))).collect();
        assert_eq!(within, [5, 6]);
        assert_eq!(Span::of(&(5..=6)), span);
        assert!(!span.has(None) && Span::of(&..).has(None));
        assert!(Span::of(&(i64::MIN..=i64::MAX)).has(Some(0)));
    }

    #[test]
    fn a_filter_knows_which_statuses_it_leaves() {
        let filter = Filter::new().phase(Phase::Dead).phase(Phase::Ready);
        assert_eq!(filter.statuses(), [Status::Pending, Status::Failed]);
        assert_eq!(filter.status(Status::Failed).statuses(), [Status::Failed]);
        assert_eq!(Filter::new().statuses(), Status::ALL);
    }

    #[test]
    fn a_filter_is_read_back_as_it_was_written_and_knows_no_other_field() {
        let filter = Filter::new().verdict(Verdict::Poison).created_at(5..).kind("a").kind("b");
        let text = serde_json::to_string(&filter).unwrap();
        assert_eq!(serde_json::from_str::<Filter>(&text).unwrap(), filter);
        for wrong in [r#"{"kinds":["a"]}"#, r#"{"phase":["gone"]}"#, r#"{"run_at":{"to":5}}"#] {
            assert!(serde_json::from_str::<Filter>(wrong).is_err(), "{wrong}");
        }
    }
}
