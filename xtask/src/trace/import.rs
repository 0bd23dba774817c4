//! `cargo xtask trace import`: a trace of what another program recorded.
//!
//! Main types: [`ImportArgs`]. Neighbours: `concertina_trace` reads the file, `figures` writes numbers.

use std::path::{Path, PathBuf};

use clap::Args;
use concertina_trace::{ImportFormat, Imported, Importer};

use super::{encoding_of, write_whole};
use crate::error::XtaskError;
use crate::figures::{bytes, count};

/// Columns of a terminal.
const WIDTH: usize = 100;
/// Columns of what stands before each line's text.
const MARGIN: usize = 14;

/// Arguments of `trace import`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask trace import snapshot.pickle                    writes snapshot.trace.zst, here
  cargo xtask trace import snapshot.pickle -o my.trace.zst
  cargo xtask trace import snapshot.pickle --device 1         one of several devices
  cargo xtask trace import rmm_log.dev0.csv -o my.trace       as text, to read along
  cargo xtask bench my.trace.zst                              replay it

In PyTorch, torch.cuda.memory._record_memory_history() before the part that matters and
torch.cuda.memory._dump_snapshot(\"snapshot.pickle\") after it write a snapshot; without the first,
it has only what is live. What becomes of each event, and what a record can't say, is in
docs/import.md; the header of the trace says it for this record.")]
pub(crate) struct ImportArgs {
    /// A PyTorch memory snapshot, an RMM event log or a table of lifetimes, plain or zstd.
    #[arg(value_name = "FILE")]
    input: PathBuf,
    /// The file to write; with the ending .zst it is compressed. An older file of this name is replaced. Without
    /// it, the name of FILE with the ending .trace.zst, in the current directory.
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,
    /// What FILE is: pytorch-snapshot, rmm-log or lifetimes; without it, its content says.
    #[arg(long, value_name = "FORMAT")]
    format: Option<ImportFormat>,
    /// Which device of a snapshot; without it, the only one with events, or else the only one.
    #[arg(long, value_name = "N")]
    device: Option<u32>,
}

/// Reads the file, writes the trace, and says what is in it.
pub(super) fn run(args: ImportArgs) -> Result<(), XtaskError> {
    let imported = Importer { format: args.format, device: args.device }.open(&args.input)?;
    let output = args.output.unwrap_or_else(|| default_output(&imported));
    write_whole(&output, |part| {
        let saved = imported.trace.save(part, encoding_of(&output));
        saved.map_err(|source| XtaskError::WriteTrace { path: output.clone(), source })
    })?;
    for line in summary(&imported, &output) {
        println!("{line}");
    }
    Ok(())
}

/// The trace's name with the usual ending.
fn default_output(imported: &Imported) -> PathBuf {
    format!("{}.trace.zst", imported.trace.header.get("name").unwrap_or("imported")).into()
}

/// What was imported, what is not known of it, and what to do next.
fn summary(imported: &Imported, output: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut say = |what: &str, text: &str| lines.extend(wrapped(what, text));
    say("from", imported.trace.header.get("source").unwrap_or_default());
    say("events", &count(imported.trace.events.len() as u64));
    let older = match imported.older_blocks {
        0 => String::new(),
        older => format!(", {} of them older than the record", count(older as u64)),
    };
    say("blocks", &format!("{}{older}", count(imported.blocks as u64)));
    say("streams", &count(imported.streams as u64));
    say("live peak", &bytes(imported.peak_live_bytes));
    say("live at end", &bytes(imported.live_at_end_bytes));
    if let Some(refusal) = &imported.out_of_memory {
        say("refused", refusal);
    }
    for note in &imported.notes {
        say(note.kind.key(), &note.text);
    }
    say("written", &output.display().to_string());
    let file = quoted(&output.display().to_string());
    lines.push(String::new());
    lines.push(format!("Next: cargo xtask bench {file}"));
    if let Some(capacity) = imported.capacity_bytes {
        lines.push(format!(
            "  or, on a device of the same size: cargo xtask bench {file} --capacity {capacity}"
        ));
    }
    if let Some(settings) = &imported.allocator_settings {
        let allocators = quoted(&format!("pytorch:{settings},concertina"));
        lines.push(format!("  or, with its settings: cargo xtask bench {file} --allocators {allocators}"));
    }
    lines
}

/// A word for a shell, whatever is in it.
fn quoted(word: &str) -> String {
    shlex::try_quote(word).map_or_else(|_| "FILE".to_owned(), Into::into)
}

/// `text` behind `what`, in lines that fit on a terminal; a word that doesn't stands alone.
fn wrapped(what: &str, text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = format!("{what:<MARGIN$}");
    for word in text.split(' ') {
        let is_begun = line.chars().count() > MARGIN;
        if is_begun && line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines.push(std::mem::replace(&mut line, " ".repeat(MARGIN)));
        } else if is_begun {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use std::fs;

    use concertina_trace::{Importer, LoadedTrace};

    use super::{ImportArgs, WIDTH, quoted, run, summary, wrapped};

    const TABLE: &str = "id,lower,upper,size\n7,0,3,10\n8,3,5,20\n";

    #[test]
    fn a_file_becomes_a_trace_and_a_mistake_leaves_the_old_one() {
        let directory = tempfile::tempdir().expect("a directory");
        let (input, output) = (directory.path().join("plan.csv"), directory.path().join("my.trace.zst"));
        let import = || {
            let (input, output) = (input.clone(), Some(output.clone()));
            run(ImportArgs { input, output, format: None, device: None })
        };
        fs::write(&input, TABLE).expect("it can be written");
        import().expect("a table");
        let trace = LoadedTrace::open(&output).expect("a trace");
        assert_eq!((trace.name(), trace.live_peak().bytes, trace.steps().len()), ("plan", 20, 4));

        fs::write(&input, format!("{TABLE}9,5,4,1\n")).expect("it can be written");
        let error = import().expect_err("it ends before it begins").to_string();
        assert!(error.ends_with("plan.csv:4: a lifetime from 5 to 4 ends before it begins"), "{error}");
        assert_eq!(LoadedTrace::open(&output).expect("the old one").steps().len(), 4);
        assert_eq!(fs::read_dir(directory.path()).expect("it is there").count(), 2);
    }

    #[test]
    fn the_summary_fits_on_a_terminal_and_says_what_to_do_next() {
        let mut imported = Importer::default().read(TABLE.into(), "plan.csv").expect("a table");
        imported.capacity_bytes = Some(4096);
        imported.allocator_settings = Some("max_split_size_mb:128'; ls #".to_owned());
        let lines = summary(&imported, "my trace.zst".as_ref());
        let (text, commands) = lines.split_at(lines.len() - 3);
        assert!(text.iter().all(|line| line.chars().count() <= WIDTH), "{text:#?}");
        assert_eq!(
            commands,
            [
                "Next: cargo xtask bench 'my trace.zst'",
                "  or, on a device of the same size: cargo xtask bench 'my trace.zst' --capacity 4096",
                "  or, with its settings: cargo xtask bench 'my trace.zst' --allocators \
                 \"pytorch:max_split_size_mb:128'; ls #,concertina\"",
            ]
        );
        assert_eq!(quoted("a\0b"), "FILE");
    }

    #[test]
    fn text_is_wrapped_behind_its_margin() {
        assert_eq!(wrapped("missing", "waits"), ["missing       waits"]);
        let long = ["word"; 30].join(" ");
        let lines = wrapped("missing", &long);
        assert_eq!(lines.iter().map(|line| line.len()).collect::<Vec<_>>(), [98, 14 + 13 * 5 - 1]);
        assert!(lines[1].starts_with("              word"));
    }
}
