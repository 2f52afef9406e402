//! What a seed plays: which kinds and commands, how many jobs, and how many steps.

use super::rng::Rng;
use super::rules::{BEHIND_ONE_GATE, HOOKED_AT, KINDS, RATED};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Enqueue,
    EnqueueMany,
    Claim,
    ClaimById,
    Renew,
    Settle,
    Save,
    Again,
    Cancel,
    Redrive,
    RunAgain,
    Delete,
    Sweep,
    Pause,
    Reap,
    Stubborn,
    WhyWaiting,
    Tick,
    Register,
    Limit,
    Batch,
    Crash,
}

use Command as C;

/// How often each is drawn, and whether a seed may do without it.
const COMMANDS: [(Command, usize, bool); 22] = [
    (C::Enqueue, 14, false),
    (C::EnqueueMany, 4, true),
    (C::Claim, 16, false),
    (C::ClaimById, 6, true),
    (C::Renew, 5, true),
    (C::Settle, 18, false),
    (C::Save, 8, true),
    (C::Again, 5, true),
    (C::Cancel, 6, true),
    (C::Redrive, 7, true),
    (C::RunAgain, 3, true),
    (C::Delete, 3, true),
    (C::Sweep, 3, true),
    (C::Pause, 3, true),
    (C::Reap, 7, true),
    (C::Stubborn, 3, true),
    (C::WhyWaiting, 2, true),
    (C::Tick, 10, false),
    (C::Register, 2, true),
    (C::Limit, 2, true),
    (C::Batch, 6, true),
    (C::Crash, 2, true),
];

/// How an attempt can end, before what else belongs to it is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Done,
    Retry,
    RateLimited,
    Terminal,
    Unrecoverable,
    Yield,
    Interrupt,
    Snooze,
    Release,
    Cancelled,
}

const WAYS: [(Way, usize); 10] = [
    (Way::Done, 4),
    (Way::Retry, 2),
    (Way::RateLimited, 2),
    (Way::Terminal, 1),
    (Way::Unrecoverable, 1),
    (Way::Yield, 3),
    (Way::Interrupt, 1),
    (Way::Snooze, 1),
    (Way::Release, 1),
    (Way::Cancelled, 1),
];

pub struct Profile {
    pub kinds: Vec<usize>,
    /// Each as often as its share.
    pub ways: Vec<Way>,
    /// Each as often as its share.
    pub commands: Vec<Command>,
    /// Jobs that are there at a time.
    pub most: usize,
    pub steps: usize,
    /// Answers get lost, and application code fails.
    pub trouble: bool,
    pub tenants: bool,
}

/// One seed in so many plays everything at length; the others are short, of few jobs and few
/// sorts of commands, so that what they do meets.
const LONG: u64 = 64;

impl Profile {
    pub fn of(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x5EED);
        let all = seed.is_multiple_of(LONG);
        let (gates, rates) = (!all && rng.one_in(6), !all && rng.one_in(8));
        let keep = if gates || rates { 0 } else { rng.below(5) };
        let mut commands = Vec::new();
        for (command, share, optional) in COMMANDS {
            if all || !optional || rng.below(5) < keep {
                commands.extend([command].repeat(share));
            }
        }
        let mut kinds: Vec<usize> = (0..KINDS.len()).collect();
        if gates {
            kinds = BEHIND_ONE_GATE.to_vec();
        } else if rates {
            kinds = vec![RATED];
        } else if !all {
            kinds = (0..=rng.below(3)).map(|_| rng.below(KINDS.len())).collect();
            if rng.one_in(4) {
                kinds.push(HOOKED_AT);
            }
        }
        let few = rng.of(&[2, 3, 4]);
        let mut ways = Vec::new();
        for (way, share) in WAYS {
            if all || way == Way::Done || rng.below(6) < few {
                ways.extend([way].repeat(share));
            }
        }
        if gates {
            ways.extend([Way::RateLimited; 5]);
        }
        Self {
            kinds,
            ways,
            commands,
            most: if all { 30 } else { 2 + rng.below(4) },
            steps: if all { 200 } else { 20 + rng.below(11) },
            trouble: all || rng.one_in(2),
            tenants: all || rng.one_in(3),
        }
    }
}
