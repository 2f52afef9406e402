//! Lists on real data: ties, jobs that come and go between pages, bodies of megabytes, and every
//! condition of a filter.

use std::collections::BTreeSet;
use std::time::Duration;

use leasehold::testing::{Bench, BenchSettings};
use leasehold::{
    Action, Allowed, Client, ErrorClass, Failed, Filter, Job as _, JobId, JobSummary, Json, NewJob,
    Operator, Order, Page, Paging, Phase, Scope, Settings, Sizes, Status, Verdict,
};

use crate::support::Act;

async fn bench() -> Bench {
    Bench::start(BenchSettings::default()).await.unwrap()
}

fn raw(kind: &str) -> NewJob {
    NewJob::raw(kind, None)
}

/// All pages of a list, with what is done between two of them.
async fn pages(
    client: &Client,
    filter: &Filter,
    order: Order,
    limit: usize,
    mut between: impl AsyncFnMut(&Page),
) -> Vec<JobSummary> {
    let (mut all, mut paging) = (Vec::new(), Paging::first(order, limit));
    loop {
        let page = client.list(filter, paging).await.unwrap();
        assert!(page.jobs.len() <= limit);
        between(&page).await;
        all.extend(page.jobs);
        let Some(next) = page.next else { return all };
        paging = Paging::first(order, limit).after(next);
    }
}

async fn ids(client: &Client, filter: Filter, order: Order) -> Vec<String> {
    let all = pages(client, &filter, order, 3, async |_| {}).await;
    all.into_iter().map(|job| job.id.to_string()).collect()
}

/// Claims a job and ends it.
async fn end(bench: &Bench, id: &JobId, how: Status) {
    let client = &bench.client;
    if how == Status::Cancelled {
        client.cancel(id.clone(), Operator::named("ann")).await.unwrap();
        return;
    }
    let lease = client.claim_by_id(id.clone(), "w").await.unwrap().unwrap();
    let ended = match how {
        Status::Completed => lease.complete(None).await.unwrap(),
        _ => lease
            .fail(Failed { class: ErrorClass::Terminal, ..Failed::transient("boom") })
            .await
            .unwrap(),
    };
    assert_eq!(ended, how);
}

#[tokio::test]
async fn k16_jobs_of_one_millisecond_are_each_seen_once_whatever_comes_and_goes_between_pages() {
    let bench = bench().await;
    let client = &bench.client;
    let jobs = (0..120).map(|n| raw("mail").id(format!("job-{n:03}")));
    client.enqueue_many(jobs).await.unwrap();
    for order in [Order::Newest, Order::Oldest] {
        let seen = pages(client, &Filter::new(), order, 50, async |page| {
            client.enqueue_many((0..10).map(|_| raw("late"))).await.unwrap();
            // The job at which the next page begins is gone by then.
            let last = page.jobs.last().unwrap().id.clone();
            if last.to_string().starts_with("job") {
                end(&bench, &last, Status::Cancelled).await;
                client.delete(last, Operator::named("ann")).await.unwrap();
            }
        })
        .await;
        let first: Vec<_> = seen.iter().filter(|job| &*job.kind == "mail").collect();
        let unique: BTreeSet<_> = first.iter().map(|job| job.id.to_string()).collect();
        assert_eq!(first.len(), unique.len(), "{order}: one was shown twice");
        let gone = if order == Order::Newest { 0 } else { 3 };
        assert_eq!(unique.len(), 120 - gone, "{order}: one was passed over");
    }
}

#[tokio::test]
async fn k16_a_cursor_that_is_none_or_of_another_list_is_refused() {
    let bench = bench().await;
    let client = &bench.client;
    client.enqueue_many((0..5).map(|_| raw("mail"))).await.unwrap();
    let mail = Filter::new().kind("mail");
    let next = client.list(&mail, Paging::first(Order::Newest, 2)).await.unwrap().next.unwrap();
    let scoped = client.scoped(Scope::of_nobody());
    for (client, filter, order, cursor) in [
        (client, &mail, Order::Newest, "abc"),
        (client, &mail, Order::Newest, ""),
        (client, &mail, Order::Oldest, &*next),
        (client, &Filter::new(), Order::Newest, &*next),
        (&scoped, &mail, Order::Newest, &*next),
    ] {
        let paging = Paging::first(order, 2).after(cursor);
        let refused = client.list(filter, paging).await.unwrap_err();
        assert!(refused.to_string().starts_with("cursor is"), "{cursor}: {refused}");
    }
    for limit in [0, 1_001, usize::MAX] {
        let refused = client.list(&mail, Paging::first(Order::Newest, limit)).await.unwrap_err();
        assert_eq!(refused.refusal().unwrap().code(), "invalid");
    }
}

#[tokio::test]
async fn k16_lists_read_no_payloads_and_show_the_beginning_of_an_error() {
    let bench = bench().await;
    let client = &bench.client;
    client.set_sizes(Sizes::default().payload(4 << 20).result(4 << 20)).await.unwrap();
    client.register("mail", Settings::new()).await.unwrap();
    let body = Json::of(&"x".repeat(3 << 20)).unwrap();
    for n in 0..20 {
        let id = client.enqueue(NewJob::raw("mail", Some(body.clone()))).await.unwrap().id;
        let lease = client.claim_by_id(id, "w").await.unwrap().unwrap();
        if n % 2 == 0 {
            lease.complete(Some(body.clone())).await.unwrap();
        } else {
            lease
                .fail(Failed {
                    class: ErrorClass::Terminal,
                    ..Failed::transient("e".repeat(3 << 20))
                })
                .await
                .unwrap();
        }
    }
    let page = client.list(&Filter::new(), Paging::first(Order::Newest, 50)).await.unwrap();
    assert_eq!(page.jobs.len(), 20);
    assert!(format!("{:?}", page.jobs).len() < 200_000, "the page is small whatever they carry");
    let error = page.jobs[0].last_error.as_ref().unwrap();
    assert_eq!(error.chars().count(), 200);
}

#[tokio::test]
async fn ended_jobs_are_listed_by_their_end_over_all_kinds() {
    let bench = bench().await;
    let client = &bench.client;
    for kind in ["a", "b", "c"] {
        client.register(kind, Settings::new()).await.unwrap();
    }
    let how = [Status::Completed, Status::Failed, Status::Cancelled];
    for n in 0..30 {
        let id = format!("{n:02}");
        client.enqueue(raw(["a", "b", "c"][n % 3]).id(&*id)).await.unwrap();
    }
    // Ended in another order than they were enqueued, two at a time.
    let order: Vec<usize> = (0..30).map(|n| n * 7 % 30).collect();
    for (n, job) in order.iter().enumerate() {
        bench.clock.advance(i64::try_from(n % 2).unwrap());
        end(&bench, &JobId::new(&format!("{job:02}")), how[n % 3]).await;
    }
    client.enqueue(raw("a").id("live")).await.unwrap();
    let ended = pages(client, &Filter::new(), Order::EndedOldest, 4, async |_| {}).await;
    assert_eq!(ended.len(), 30);
    assert!(ended.windows(2).all(|two| two[0].finished_at <= two[1].finished_at));
    let mut back = ids(client, Filter::new(), Order::EndedNewest).await;
    back.reverse();
    let forth: Vec<_> = ended.iter().map(|job| job.id.to_string()).collect();
    assert_eq!(back, forth, "both ways are the same list");
    let failed = Filter::new().status(Status::Failed).kind("b");
    let some = ids(client, failed, Order::EndedOldest).await;
    let expected: Vec<_> = ended
        .iter()
        .filter(|job| job.status == Status::Failed && &*job.kind == "b")
        .map(|job| job.id.to_string())
        .collect();
    assert!(!expected.is_empty() && some == expected);
}

/// Two jobs, of which `ours` differs from `other` in every column that a filter knows.
async fn two(bench: &Bench) {
    let client = &bench.client;
    client.register("ours", Settings::new().queue("q")).await.unwrap();
    client.register_reason("tidy_up", "Tidying up").await.unwrap();
    let ours = raw("ours").id("ours").tenant("t").organization("o").reason("tidy_up");
    let ours = ours.subject_type("order").subject_id("42").priority(7).idempotency_key("i");
    let ours = ours.dedup_key("d").lock_key("l").limit_key("k").delay(Duration::from_millis(5));
    client.enqueue(raw("other").id("other")).await.unwrap();
    bench.clock.advance(10);
    client.enqueue(ours).await.unwrap();
    bench.clock.advance(10);
    let lease = client.claim_by_id("ours", "w").await.unwrap().unwrap();
    client.cancel("other", Operator::named("ann")).await.unwrap();
    bench.clock.advance(10);
    lease
        .fail(Failed {
            class: ErrorClass::Unrecoverable,
            code: Some("E1".into()),
            ..Failed::transient("boom")
        })
        .await
        .unwrap();
}

#[tokio::test]
async fn every_condition_of_a_filter_tells_two_jobs_apart() {
    let bench = bench().await;
    two(&bench).await;
    let start = 1_000_000;
    let client = &bench.client;
    let ours = vec![
        Filter::new().phase(Phase::Dead),
        Filter::new().status(Status::Failed),
        Filter::new().verdict(Verdict::Unrecoverable),
        Filter::new().error_class(ErrorClass::Unrecoverable),
        Filter::new().priority(7),
        Filter::new().id("ours".into()),
        Filter::new().kind("ours"),
        Filter::new().queue("q"),
        Filter::new().tenant("t"),
        Filter::new().organization("o"),
        Filter::new().tenant("t").organization("o"),
        Filter::new().reason("tidy_up"),
        Filter::new().subject_type("order"),
        Filter::new().subject_id("42"),
        Filter::new().owner("w"),
        Filter::new().error_code("E1"),
        Filter::new().idempotency_key("i"),
        Filter::new().dedup_key("d"),
        Filter::new().lock_key("l"),
        Filter::new().limit_key("k"),
        Filter::new().created_at(start + 10..),
        Filter::new().run_at(start + 15..=start + 15),
        Filter::new().updated_at(start + 30..),
        Filter::new().started_at(start..),
        Filter::new().finished_at(start + 30..start + 31),
    ];
    for filter in ours {
        for order in Order::ALL {
            let seen = ids(client, filter.clone(), *order).await;
            assert_eq!(seen, ["ours"], "{order}: {filter:?}");
            let seen = ids(client, filter.clone().parked_at(0..), *order).await;
            assert!(seen.is_empty(), "{order}: all conditions hold together: {filter:?}");
        }
    }
    let neither = Filter::new().parked_at(..i64::MAX);
    assert!(ids(client, neither, Order::Newest).await.is_empty());
    let both = Filter::new().kind("ours").kind("other");
    assert_eq!(ids(client, both, Order::Oldest).await, ["other", "ours"], "one of several fits");
}

#[tokio::test]
async fn a_copy_is_found_by_what_it_was_made_after() {
    let bench = bench().await;
    two(&bench).await;
    let copy = bench.client.run_again("ours", Operator::named("ann")).await.unwrap();
    let seen = ids(&bench.client, Filter::new().copy_of("ours".into()), Order::Newest).await;
    assert_eq!(seen, [copy.to_string()]);
}

#[tokio::test]
async fn running_jobs_are_found_among_many_others() {
    let bench = bench().await;
    let client = &bench.client;
    client.register("mail", Settings::new()).await.unwrap();
    client.enqueue_many((0..500).map(|n| raw("mail").id(format!("{n:03}")))).await.unwrap();
    for id in ["400", "007", "123"] {
        let _running = client.claim_by_id(id, "w").await.unwrap().unwrap();
    }
    let running = Filter::new().status(Status::Running);
    assert_eq!(ids(client, running.clone(), Order::Oldest).await, ["007", "123", "400"]);
    assert_eq!(ids(client, running, Order::Newest).await, ["400", "123", "007"]);
}

#[tokio::test]
async fn jobs_that_are_named_are_found_at_once_in_every_order() {
    let bench = bench().await;
    let client = &bench.client;
    client.enqueue_many((0..6_000).map(|n| raw("mail").id(n.to_string()))).await.unwrap();
    for id in ["5999", "3", "17"] {
        bench.clock.advance(1);
        client.cancel(id, Operator::named("ann")).await.unwrap();
    }
    let named = ["17", "3", "0", "5999", "17", "none"];
    let filter = named.iter().fold(Filter::new(), |filter, id| filter.id((*id).into()));
    for (order, expected) in [
        (Order::Newest, vec!["5999", "17", "3", "0"]),
        (Order::Oldest, vec!["0", "3", "17", "5999"]),
        (Order::EndedNewest, vec!["17", "3", "5999"]),
        (Order::EndedOldest, vec!["5999", "3", "17"]),
    ] {
        assert_eq!(ids(client, filter.clone(), order).await, expected, "{order}");
        let page = client.list(&filter, Paging::first(order, 10)).await.unwrap();
        assert_eq!((page.jobs.len(), page.next), (expected.len(), None), "{order}: on one page");
    }
}

#[tokio::test]
async fn a_page_looks_at_so_many_jobs_and_the_next_goes_on() {
    let bench = bench().await;
    let client = &bench.client;
    client.enqueue(Act::Done.into_new().id("first")).await.unwrap();
    for _ in 0..6 {
        client.enqueue_many((0..1_000).map(|_| raw("mail"))).await.unwrap();
    }
    let filter = Filter::new().kind("act");
    let page = client.list(&filter, Paging::first(Order::Newest, 10)).await.unwrap();
    assert!(page.jobs.is_empty(), "5000 jobs were looked at, and none was of the kind");
    let paging = Paging::first(Order::Newest, 10).after(page.next.unwrap());
    let page = client.list(&filter, paging).await.unwrap();
    assert_eq!((page.jobs.len(), page.next), (1, None));
    assert_eq!(page.jobs[0].allowed(Action::Delete), Allowed::Refused("live"));
}

#[tokio::test]
async fn a_scoped_list_shows_its_own_jobs_by_whatever_index() {
    let bench = bench().await;
    let client = &bench.client;
    client.register("mail", Settings::new()).await.unwrap();
    let scopes = [
        (Scope::of_nobody(), None, None),
        (Scope::tenant("t"), Some("t"), None),
        (Scope::tenant("t").organization("o"), Some("t"), Some("o")),
    ];
    for (n, (_, tenant, organization)) in scopes.iter().enumerate() {
        for state in ["waits", "runs", "ended"] {
            let mut job = raw("mail").id(format!("{n}-{state}")).subject_id("42");
            job = tenant.iter().fold(job, |job, tenant| job.tenant(*tenant));
            job = organization.iter().fold(job, |job, one| job.organization(*one));
            let id = client.enqueue(job).await.unwrap().id;
            match state {
                "runs" => drop(client.claim_by_id(id, "w").await.unwrap().unwrap()),
                "ended" => end(&bench, &id, Status::Cancelled).await,
                _ => {}
            }
        }
    }
    for (n, (scope, ..)) in scopes.iter().enumerate() {
        let client = client.scoped(scope.clone());
        let mine = |states: &[&str]| states.iter().map(|one| format!("{n}-{one}")).collect();
        let all: Vec<String> = mine(&["waits", "runs", "ended"]);
        for filter in [Filter::new(), Filter::new().kind("mail"), Filter::new().subject_id("42")] {
            assert_eq!(ids(&client, filter, Order::Oldest).await, all);
        }
        let running = Filter::new().status(Status::Running);
        assert_eq!(ids(&client, running, Order::Newest).await, mine(&["runs"]));
        let ended: Vec<String> = mine(&["ended"]);
        assert_eq!(ids(&client, Filter::new(), Order::EndedNewest).await, ended);
        let others = (0..3).fold(Filter::new(), |all, n| all.id(JobId::new(&format!("{n}-ended"))));
        assert_eq!(ids(&client, others, Order::Oldest).await, ended);
    }
}
