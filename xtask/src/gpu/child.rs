//! A process of its own for a part, stopped when its time is over.
//!
//! Main types: [`Child`], [`End`]. Neighbours: `parts` starts them; `process` has programs that may take as long as they
//! like.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How often a process is looked after.
const LOOK: Duration = Duration::from_millis(20);

/// A program, its arguments, and the file that what it says goes to.
#[derive(Debug)]
pub(super) struct Child<'a> {
    program: PathBuf,
    arguments: Vec<String>,
    directory: &'a Path,
    log: PathBuf,
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// With exit code 0.
    Well,
    /// With another one, by a signal, or it could not be started: the last line that it said, or the system.
    Badly(String),
    /// It was stopped: its time was over.
    Stopped,
}

impl<'a> Child<'a> {
    pub(super) fn new(program: PathBuf, directory: &'a Path, log: PathBuf) -> Self {
        Self { program, arguments: Vec::new(), directory, log }
    }

    pub(super) fn with<S: AsRef<str>>(mut self, arguments: &[S]) -> Self {
        self.arguments.extend(arguments.iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    /// Runs it until it ends, or `limit` is over. `look` is called meanwhile, now and then. What it said stays in its log
    /// only if it did not end well.
    pub(super) fn run(&self, limit: Duration, mut look: impl FnMut()) -> (End, Duration) {
        let start = Instant::now();
        let end = match self.wait(start + limit, &mut look) {
            Ok(end) => end,
            Err(error) => End::Badly(format!("can't run {}: {error}", self.program.display())),
        };
        if end == End::Well {
            // Nothing in it that anybody needs.
            let _ = fs::remove_file(&self.log);
        }
        (end, start.elapsed())
    }

    fn wait(&self, deadline: Instant, look: &mut impl FnMut()) -> io::Result<End> {
        if let Some(parent) = self.log.parent() {
            fs::create_dir_all(parent)?;
        }
        let log = File::create(&self.log)?;
        let mut child = Command::new(&self.program)
            .args(&self.arguments)
            .current_dir(self.directory)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        loop {
            if let Some(status) = child.try_wait()? {
                let end = if status.success() { End::Well } else { End::Badly(self.last_words(status)) };
                return Ok(end);
            }
            if Instant::now() >= deadline {
                child.kill()?;
                child.wait()?;
                return Ok(End::Stopped);
            }
            look();
            thread::sleep(LOOK);
        }
    }

    fn last_words(&self, status: std::process::ExitStatus) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log).into_owned();
        let last = log.lines().map(str::trim).rfind(|line| !line.is_empty());
        last.map_or_else(|| status.to_string(), str::to_owned)
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use super::{Child, End};

    fn shell(line: &str) -> (End, bool) {
        let directory = tempfile::tempdir().expect("a directory");
        let log = directory.path().join("logs/part.txt");
        let child = Child::new(PathBuf::from("sh"), directory.path(), log.clone()).with(&["-c", line]);
        let limit = if line.starts_with("while") { Duration::ZERO } else { Duration::from_secs(60) };
        (child.run(limit, || ()).0, log.exists())
    }

    #[test]
    fn a_process_ends_well_badly_or_is_stopped() {
        assert_eq!(shell("echo so far"), (End::Well, false));
        let said = End::Badly("error: no device".to_owned());
        assert_eq!(shell("echo so far; echo 'error: no device' >&2; echo; exit 3"), (said, true));
        let (silent, _) = shell("exit 3");
        assert!(matches!(&silent, End::Badly(why) if why.contains('3')), "{silent:?}");
        assert_eq!(shell("while :; do :; done").0, End::Stopped);
    }

    #[test]
    fn a_program_that_is_not_there_is_told() {
        let directory = tempfile::tempdir().expect("a directory");
        let log = directory.path().join("log.txt");
        let child = Child::new(PathBuf::from("no-such-program-here"), directory.path(), log);
        let (end, _) = child.run(Duration::from_secs(60), || ());
        assert!(matches!(&end, End::Badly(why) if why.contains("no-such-program-here")), "{end:?}");
    }
}
