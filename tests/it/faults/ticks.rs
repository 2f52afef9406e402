//! K05: what is to run once at an instant, asked for by several at once.
//!
//! There are no schedules yet: this is what they, and a cron of the application's own, stand on.

use leasehold::testing::{Bench, BenchSettings};
use leasehold::{NewJob, Settings, Was};

use super::{START, place};
use crate::support::Bystander;

/// Three processes on one host shared a name, each believed that it led, and one tick made three
/// jobs (`oban-bg/oban-py#32`). A tick whose id is its instant is one job, whoever asks for it, and
/// a restart in between changes nothing.
#[tokio::test]
async fn k05_cron_a_tick_that_three_ask_for_is_one_job_and_stays_one_after_it_has_run() {
    let (_dir, path) = place();
    let start = |seed| {
        let path = Some(path.clone());
        Bench::start(BenchSettings { now: START, path, seed, ..BenchSettings::default() })
    };
    let mut schedulers =
        [start(1).await.unwrap(), start(2).await.unwrap(), start(3).await.unwrap()];
    let client = schedulers[0].client.clone();
    client.register("nightly", Settings::new()).await.unwrap();
    let bystander = Bystander::enqueue(&client).await;
    for tick in 0..10_i64 {
        let instant = START + tick * 86_400_000;
        let job = || NewJob::raw("nightly", None).id(format!("nightly@{instant}")).run_at(instant);
        let [one, two, three] = &schedulers;
        let (a, b, c) = tokio::join!(
            one.client.enqueue(job()),
            two.client.enqueue(job()),
            three.client.enqueue(job())
        );
        let new = [a, b, c].into_iter().filter(|one| one.as_ref().unwrap().was == Was::New);
        assert_eq!(new.count(), 1, "tick {tick}");
        // It runs; one of the three is killed and comes back, and asks again.
        for scheduler in &schedulers {
            scheduler.clock.advance(86_400_000);
        }
        let lease = client.claim(&["nightly"], "w", 9).await.unwrap().remove(0);
        lease.complete(None).await.unwrap();
        if tick == 5 {
            schedulers[2] = start(4).await.unwrap();
            schedulers[2].clock.advance(6 * 86_400_000);
        }
        let late = schedulers[2].client.enqueue(job()).await.unwrap();
        assert_ne!(late.was, Was::New, "a tick that has run is not run again");
    }
    assert_eq!(client.counts().await.unwrap().completed, 10);
    bystander.check().await;
}
