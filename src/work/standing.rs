//! A session's standing claim: what it could take, asked at the end of each batch of the store,
//! so that a claim rides in the commit of whatever came before it.

use std::sync::Arc;

use crate::store::Claimer;
use crate::store::claim::{Batch, Want};

use super::run::Run;
use super::session::Session;
use super::stats::add;

/// A session's claims: what the store asks it at the end of each batch.
pub(crate) struct Standing(pub(crate) Arc<Session>);

impl Claimer for Standing {
    fn want(&self, work: bool) -> Option<Want> {
        let session = &self.0;
        let mut inner = session.inner();
        inner.hungry |= work;
        let free = session.capacity.slots.saturating_sub(inner.busy.len());
        if !inner.hungry || inner.quiet || inner.held || free == 0 {
            return None;
        }
        let used = |of: &dyn Fn(&Run) -> bool| inner.busy.values().filter(|run| of(run)).count();
        let queues = session.capacity.queues.as_ref().map(|queues| {
            let left = |(queue, slots): (&Arc<str>, &usize)| {
                let used = used(&|run: &Run| run.claimed.queue == *queue);
                (queue.clone(), slots.saturating_sub(used))
            };
            queues.iter().map(left).collect()
        });
        let left = |(kind, slots): (&Arc<str>, &usize)| {
            let used = used(&|run: &Run| run.claimed.kind == *kind);
            (kind.clone(), slots.saturating_sub(used))
        };
        let per_kind = session.capacity.kinds.iter().map(left).collect();
        let suspects = 1_usize.saturating_sub(used(&|run: &Run| run.claimed.stalls > 0));
        let (owner, kinds) = (session.owner.clone(), session.kinds());
        let to_the_end = true;
        Some(Want { owner, kinds, limit: free, suspects, queues, per_kind, to_the_end })
    }

    fn deliver(&self, batch: Batch) {
        self.0.take(batch);
    }

    fn failed(&self) {
        add(&self.0.counters.claim_errors);
    }
}
