//! One step: its verb, what must come back, and what did.

use super::args::{Args, Stop};
use super::stage::{Ran, Stage};
use super::value::Value;
use super::{enqueue, holder, operate, scenario};

/// What was expected of a step and what was seen instead.
#[derive(Debug)]
pub struct Difference {
    pub expected: String,
    pub seen: String,
}

impl Difference {
    fn between(expected: &Value, seen: &Value) -> Self {
        Self { expected: expected.to_string(), seen: seen.to_string() }
    }

    pub fn broken(text: String) -> Self {
        Self { expected: "a scenario in the language, and a store that answers".into(), seen: text }
    }

    /// What stopped that which is no step.
    pub fn of(stop: Stop) -> Self {
        match stop {
            Stop::Broken(text) => Self::broken(text),
            Stop::Refused(refusal) => Self::broken(refusal.to_string()),
            Stop::Differs { expected, seen } => Self { expected, seen },
        }
    }
}

/// A step, its parts told apart.
struct Step {
    verb: String,
    argument: Value,
    called: Option<Value>,
    is: Option<Value>,
    refused: Option<Value>,
}

impl Step {
    fn read(given: &Value) -> Result<Self, Stop> {
        let given = given.clone().expand().map_err(Stop::Broken)?;
        let Value::Object(fields) = given else {
            return Err(Stop::Broken(format!("{given} is no step")));
        };
        let (mut verbs, mut called, mut is, mut refused) = (Vec::new(), None, None, None);
        for (name, value) in fields {
            match name.as_str() {
                "as" => called = Some(value),
                "is" => is = Some(value),
                "refused" => refused = Some(value),
                _ => verbs.push((name, value)),
            }
        }
        if is.is_some() && refused.is_some() {
            return Err(Stop::broken("a step that is refused has no answer"));
        }
        let names: Vec<String> = verbs.iter().map(|verb| verb.0.clone()).collect();
        match (verbs.pop(), verbs.is_empty()) {
            (Some((verb, argument)), true) => Ok(Self { verb, argument, called, is, refused }),
            _ => Err(Stop::Broken(format!("a step has one verb and no other fields: {names:?}"))),
        }
    }
}

/// Runs a step and answers how it differs from what it must be.
pub async fn run(stage: &mut Stage, given: &Value) -> Option<Difference> {
    match Step::read(given) {
        Ok(step) => check(stage, &step).await,
        Err(stop) => Some(Difference::of(stop)),
    }
}

async fn check(stage: &mut Stage, step: &Step) -> Option<Difference> {
    let ran = perform(stage, step).await;
    match (ran, &step.refused) {
        (Err(Stop::Broken(text)), _) => Some(Difference::broken(text)),
        (Err(Stop::Differs { expected, seen }), _) => Some(Difference { expected, seen }),
        (Ok(answer), Some(refused)) => Some(Difference {
            expected: format!("refused {refused}"),
            seen: format!("an answer: {answer}"),
        }),
        (Err(Stop::Refused(refusal)), None) => {
            let expected = step.is.as_ref().map_or("success".to_owned(), Value::to_string);
            Some(Difference { expected, seen: format!("refused {refusal}") })
        }
        (Err(Stop::Refused(refusal)), Some(refused)) => {
            let same = match refused {
                Value::Text(_) => refusal.get("code") == Some(refused),
                Value::Object(_) => refused.get("code").is_some() && refused.matches(&refusal),
                _ => false,
            };
            (!same).then(|| Difference::between(refused, &refusal))
        }
        (Ok(answer), None) => {
            // The columns of `expect` and the absence of `absent` are what they must be.
            let (expected, same) = match (step.verb.as_str(), &step.is) {
                ("expect", None) => {
                    let fields = step.argument.fields().unwrap_or_default().iter();
                    let fields = fields.filter(|field| field.0 != "job").cloned();
                    let expected = Value::Object(fields.collect());
                    let same = expected == answer;
                    (expected, same)
                }
                ("absent", None) => (Value::Bool(true), answer == Value::Bool(true)),
                (verb @ ("expect" | "absent"), Some(_)) => {
                    return Some(Difference::broken(format!(
                        "{verb} is what it is, without \"is\""
                    )));
                }
                (_, None) => return None,
                (_, Some(is)) => (is.clone(), is.matches(&answer)),
            };
            (!same).then(|| Difference::between(&expected, &answer))
        }
    }
}

async fn perform(stage: &mut Stage, step: &Step) -> Ran {
    let (given, called) = (&step.argument, step.called.as_ref());
    let names = ["enqueue", "enqueue_many", "claim", "claim_by_id"];
    if called.is_some() && !names.contains(&step.verb.as_str()) {
        return Err(Stop::Broken(format!("nothing that {} answers has a name", step.verb)));
    }
    match step.verb.as_str() {
        "advance" => match given {
            Value::Number(ms) => {
                stage.bench.clock.advance(ms.parse().map_err(Stop::broken)?);
                Ok(Value::Null)
            }
            _ => Err(Stop::Broken(format!("{given} are no milliseconds"))),
        },
        "random" => {
            stage.bench.entropy.set_draws(&scenario::draws(given)?);
            Ok(Value::Null)
        }
        "hooks" => hooks(stage, given),
        "enqueue" => enqueue::one(stage, given, called).await,
        "enqueue_many" => enqueue::many(stage, given, called).await,
        "claim" => holder::claim(stage, given, called).await,
        "claim_by_id" => holder::claim_by_id(stage, given, called).await,
        verb @ ("renew" | "yield" | "interrupt" | "release" | "settle_cancelled") => {
            holder::plain(stage, verb, given).await
        }
        "complete" => holder::complete(stage, given).await,
        "fail" => holder::fail(stage, given).await,
        "snooze" => holder::snooze(stage, given).await,
        "checkpoint" => holder::checkpoint(stage, given).await,
        "progress" => holder::progress(stage, given).await,
        "load" => holder::load(stage, given).await,
        "cancel" => operate::cancel(stage, given).await,
        "redrive" => operate::redrive(stage, given).await,
        "delete" => operate::delete(stage, given).await,
        "sweep" => operate::sweep(stage, given).await,
        verb @ ("pause" | "resume") => operate::pause(stage, verb, given).await,
        "reap" => operate::reap(stage, given).await,
        "counts" => operate::counts(stage, given).await,
        "why_waiting" => operate::why_waiting(stage, given).await,
        "expect" => operate::columns(stage, given).await,
        "absent" => operate::absent(stage, given).await.map(Value::Bool),
        verb => Err(Stop::Broken(format!("no verb is called {verb:?}"))),
    }
}

fn hooks(stage: &Stage, given: &Value) -> Ran {
    let known = ["kind", "on_transition", "on_redrive", "on_cancel"];
    let args = Args::of("hooks", given, &known)?;
    let kind = args.text("kind")?.unwrap_or_default();
    match stage.hooks.get(kind) {
        Some(told) => told.change(&args).map(|()| Value::Null),
        None => Err(Stop::Broken(format!("kind {kind:?} has no hooks"))),
    }
}
