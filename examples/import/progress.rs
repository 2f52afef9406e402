//! How far the import is: a bar on a terminal, a line now and then anywhere else. Both on
//! standard error, so that standard output holds the result alone.

use std::io::{IsTerminal, stderr};

use indicatif::{ProgressBar, ProgressStyle};
use leasehold::{JobRecord, Phase};

pub struct Display {
    bar: Option<ProgressBar>,
    /// The tenths of the file of which a line has told.
    told: u64,
    trouble: Option<String>,
}

impl Display {
    pub fn new(bytes: u64) -> anyhow::Result<Self> {
        let mut bar = None;
        if stderr().is_terminal() {
            let style = "{bar:40} {percent:>3} %  {bytes} of {total_bytes}  {msg}";
            bar = Some(ProgressBar::new(bytes).with_style(ProgressStyle::with_template(style)?));
        }
        Ok(Self { bar, told: 0, trouble: None })
    }

    /// Shows the job as it stands, whichever process runs it.
    pub fn show(&mut self, job: &JobRecord) {
        let done = job.progress_done.and_then(|done| u64::try_from(done).ok()).unwrap_or(0);
        let total = job.progress_total.and_then(|total| u64::try_from(total).ok()).unwrap_or(0);
        let tenths = done.saturating_mul(10).checked_div(total).unwrap_or(0);
        match &self.bar {
            Some(bar) => bar.set_position(done),
            None if tenths > self.told => eprintln!("{} %", 10 * tenths),
            None => {}
        }
        self.told = self.told.max(tenths);
        if job.phase == Phase::Retrying && job.last_error != self.trouble {
            let error = job.last_error.clone().unwrap_or_default();
            self.say(&format!("will be tried again: {error}"));
            self.trouble.clone_from(&job.last_error);
        }
    }

    fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => eprintln!("{text}"),
        }
    }

    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
