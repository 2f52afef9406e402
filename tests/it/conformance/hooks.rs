//! Hooks that answer what a scenario tells them.

use std::sync::{Arc, Mutex, PoisonError};

use leasehold::Hooks;

use super::args::{Args, Stop};
use super::value::Value;

/// What the hooks of a kind answer, where the kind has them.
#[derive(Clone, Copy, Default)]
struct Answers {
    on_transition: Option<usize>,
    on_redrive: Option<usize>,
    on_cancel: Option<bool>,
}

/// The answers of a kind's hooks, which may be changed from step to step.
#[derive(Clone, Default)]
pub struct Told(Arc<Mutex<Answers>>);

const NAMES: [&str; 3] = ["on_transition", "on_redrive", "on_cancel"];

impl Told {
    /// The hooks that are given, and a hand on their answers.
    pub fn hooks(given: &Value) -> Result<(Hooks, Self), Stop> {
        let told = Self::default();
        let args = Args::of("hooks", given, &NAMES)?;
        let answers = Answers {
            on_transition: args.number(NAMES[0])?,
            on_redrive: args.number(NAMES[1])?,
            on_cancel: args.flag(NAMES[2])?,
        };
        told.set(answers);
        let mut hooks = Hooks::new();
        if answers.on_transition.is_some() {
            let told = told.clone();
            hooks = hooks.on_transition(move |_, _| Ok(told.get().on_transition.unwrap_or(0)));
        }
        if answers.on_redrive.is_some() {
            let told = told.clone();
            hooks = hooks.on_redrive(move |_, _| Ok(told.get().on_redrive.unwrap_or(0)));
        }
        if answers.on_cancel.is_some() {
            let told = told.clone();
            hooks = hooks.on_cancel(move |_, _| match told.get().on_cancel {
                Some(true) => Ok(()),
                _ => Err("told to refuse".into()),
            });
        }
        Ok((hooks, told))
    }

    /// Changes the answers of hooks that the kind has; any other is a failure.
    pub fn change(&self, args: &Args<'_>) -> Result<(), Stop> {
        let mut answers = self.get();
        let nobody = |name: &str| Stop::Broken(format!("the kind has no {name}"));
        for (name, answer) in
            [(NAMES[0], &mut answers.on_transition), (NAMES[1], &mut answers.on_redrive)]
        {
            if let Some(matched) = args.number(name)? {
                *answer.as_mut().ok_or_else(|| nobody(name))? = matched;
            }
        }
        if let Some(agrees) = args.flag(NAMES[2])? {
            *answers.on_cancel.as_mut().ok_or_else(|| nobody(NAMES[2]))? = agrees;
        }
        self.set(answers);
        Ok(())
    }

    fn get(&self) -> Answers {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, answers: Answers) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = answers;
    }
}
