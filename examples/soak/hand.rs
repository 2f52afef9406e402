//! Holds jobs by hand, mostly for longer than the lease: so there are holders that have lost their
//! job, do not know it, and write all the same.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold::{Error, Failed, Json, Lease};

use crate::dice::Dice;
use crate::drive::Shared;
use crate::kinds::{self, Done, HAND_LEASE_MS};
use crate::said::{ByHand, Said};

/// Claims one job after the other, until all is over.
pub async fn hold(shared: Shared, who: u64) {
    let (kind, _) = kinds::by_hand();
    let owner = format!("by hand {who}");
    let mut dice = Dice::new(shared.seed, who);
    while !shared.is_over() {
        match shared.client.claim(&[kind], &owner, 1).await {
            Ok(leases) if leases.is_empty() => {}
            Ok(leases) => {
                for lease in leases {
                    hold_one(&shared, &lease, &mut dice).await;
                }
                continue;
            }
            Err(error) => log::error!("a claim by hand: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn hold_one(shared: &Shared, lease: &Lease, dice: &mut Dice) {
    let (job, epoch) = (lease.job().to_string(), lease.epoch());
    shared.log.say(Said::Started { job, epoch });
    // Up to one and a half leases before each of the two writes.
    let longest = HAND_LEASE_MS * 3 / 2;
    shared.work(dice.below(longest)).await;
    let Ok(value) = Json::of(&Done { epoch }) else { return };
    let asked = utc_ms();
    let saved = lease.checkpoint("", value.clone()).await;
    note(shared, lease, asked, saved.map(|()| ByHand::Saved));
    shared.work(dice.below(longest)).await;
    let asked = utc_ms();
    let settled = match dice.below(4) {
        0 => lease.fail(Failed::transient("not yet")).await,
        1 => lease.hand_back().await,
        _ => lease.complete(Some(value)).await,
    };
    note(shared, lease, asked, settled.map(ByHand::Settled));
}

fn note(shared: &Shared, lease: &Lease, asked: i64, write: Result<ByHand, Error>) {
    let write = match write {
        Ok(write) => write,
        Err(Error::Refused(_)) => ByHand::Refused,
        Err(error) => {
            log::error!("a write by hand: {error}");
            return;
        }
    };
    let (job, epoch) = (lease.job().to_string(), lease.epoch());
    shared.log.say(Said::ByHand { job, epoch, asked, write });
}

pub fn utc_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
