//! A scenario as it stands in a file, and the fresh store that it starts on.

use std::collections::HashMap;

use leasehold::testing::{Bench, BenchSettings};
use leasehold::{Json, Settings};

use super::args::{Args, Stop};
use super::hooks::Told;
use super::stage::Stage;
use super::value::Value;

/// A scenario, nothing in it looked at yet but its name.
pub struct Scenario {
    pub name: String,
    /// Its fields but the steps.
    given: Value,
    pub steps: Vec<Value>,
}

impl Scenario {
    /// The scenarios of a file's text.
    pub fn all(text: &str) -> Result<Vec<Self>, Stop> {
        let file = Value::parse(text).map_err(Stop::Broken)?;
        let args = Args::of("a file", &file, &["scenarios"])?;
        let Value::List(scenarios) = args.needed("scenarios")? else {
            return Err(Stop::broken("the scenarios of a file are a list"));
        };
        if scenarios.is_empty() {
            return Err(Stop::broken("a file without scenarios"));
        }
        scenarios.iter().map(Self::read).collect()
    }

    /// The same, each as text.
    pub fn texts(text: &str) -> Result<Vec<String>, String> {
        match Value::parse(text)?.get("scenarios") {
            Some(Value::List(scenarios)) => Ok(scenarios.iter().map(Value::to_string).collect()),
            _ => Err("no list of scenarios".to_owned()),
        }
    }

    fn read(given: &Value) -> Result<Self, Stop> {
        let name = given.get("name").and_then(Value::as_text).unwrap_or_default().to_owned();
        let kebab = |part: &str| {
            !part.is_empty() && part.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
        };
        if !name.split('-').all(kebab) {
            return Err(Stop::Broken(format!("{name:?} is no name of a scenario")));
        }
        let steps = match given.get("steps") {
            Some(Value::List(steps)) if !steps.is_empty() => steps.clone(),
            _ => return Err(Stop::Broken(format!("{name} has no list of steps"))),
        };
        let others = fields(given)?.iter().filter(|field| field.0 != "steps").cloned();
        Ok(Self { name, given: Value::Object(others.collect()), steps })
    }

    /// A fresh store with everything that the scenario asks for before its first step.
    pub async fn stage(&self) -> Result<Stage, Stop> {
        let known = ["name", "about", "now", "random", "kinds", "settings"];
        let given = self.given.clone().expand().map_err(Stop::Broken)?;
        let args = Args::of("a scenario", &given, &known)?;
        args.text("about")?;
        let mut settings = BenchSettings::default();
        settings.now = args.number("now")?.unwrap_or(settings.now);
        if let Some(random) = args.value("random") {
            settings.draws = draws(random)?;
        }
        let limits = store_settings(&args, &mut settings)?;
        let (mut kinds, mut told) = (Vec::new(), HashMap::new());
        for (kind, given) in args.value("kinds").map_or(Ok(&[][..]), fields)? {
            let (facts, hooks) = kind_settings(given)?;
            if let Some(hooks) = hooks {
                let (hooks, answers) = Told::hooks(hooks)?;
                settings.hooks.push((kind.clone(), hooks));
                told.insert(kind.clone(), answers);
            }
            kinds.push((kind, facts));
        }
        let bench = Bench::start(settings).await.map_err(Stop::broken)?;
        for (kind, facts) in kinds {
            bench.client.register(kind, facts).await.map_err(Stop::broken)?;
        }
        for (name, running) in limits.queues {
            bench.client.limit_queue(&name, running).await.map_err(Stop::broken)?;
        }
        for (name, running) in limits.keys {
            bench.client.limit_key(&name, running).await.map_err(Stop::broken)?;
        }
        Ok(Stage::new(bench, told))
    }
}

fn fields(value: &Value) -> Result<&[(String, Value)], Stop> {
    value.fields().ok_or_else(|| Stop::Broken(format!("{value} is no object")))
}

/// Draws in [0, 1).
pub fn draws(value: &Value) -> Result<Vec<f64>, Stop> {
    let draw = |item: &Value| match item {
        Value::Number(text) => text.parse().ok().filter(|draw| (0.0..1.0).contains(draw)),
        _ => None,
    };
    let draws: Option<Vec<f64>> = match value {
        Value::List(items) if !items.is_empty() => items.iter().map(draw).collect(),
        _ => None,
    };
    draws.ok_or_else(|| Stop::Broken(format!("{value} is no list of draws from [0, 1)")))
}

/// Limits on running rows.
#[derive(Default)]
struct Limits {
    queues: Vec<(String, u32)>,
    keys: Vec<(String, u32)>,
}

fn store_settings(args: &Args<'_>, settings: &mut BenchSettings) -> Result<Limits, Stop> {
    let Some(given) = args.value("settings") else { return Ok(Limits::default()) };
    let given = Args::of("settings", given, &["grace", "retention", "limits"])?;
    settings.grace = given.number("grace")?.unwrap_or(settings.grace);
    if let Some(retention) = given.value("retention") {
        let statuses = ["completed", "cancelled", "failed"];
        let retention = Args::of("retention", retention, &statuses)?;
        for (keep, status) in settings.keep.iter_mut().zip(statuses) {
            *keep = retention.number(status)?;
        }
    }
    let Some(limits) = given.value("limits") else { return Ok(Limits::default()) };
    let limits = Args::of("limits", limits, &["queues", "limit_keys"])?;
    let read = |scope: &str| -> Result<Vec<(String, u32)>, Stop> {
        let Some(given) = limits.value(scope) else { return Ok(Vec::new()) };
        let limit = |(name, value): &(String, Value)| match value {
            Value::Number(n) => n.parse().ok().map(|n| (name.clone(), n)),
            _ => None,
        };
        let read: Option<Vec<_>> = fields(given)?.iter().map(limit).collect();
        read.ok_or_else(|| Stop::Broken(format!("{given} are no limits")))
    };
    Ok(Limits { queues: read("queues")?, keys: read("limit_keys")? })
}

/// A kind's settings, and what its hooks answer at first.
fn kind_settings(given: &Value) -> Result<(Settings, Option<&Value>), Stop> {
    let own = fields(given)?.iter().filter(|field| field.0 != "hooks").cloned().collect();
    let json = Json::parse(Value::Object(own).to_string()).map_err(Stop::Broken)?;
    let settings = Settings::from_json(&json).map_err(Stop::Broken)?;
    Ok((settings, given.get("hooks")))
}
