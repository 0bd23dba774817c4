//! Rules on the Markdown pages: links lead somewhere, and every `cargo xtask` command that a page shows exists.
//!
//! Main types: [`Page`], [`Code`]. Neighbours: commands are parsed by [`Cli`], just as the command line is.

use std::collections::HashMap;
use std::ops::Range;

use clap::Parser as _;
use clap::error::ErrorKind;
use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag, TagEnd};

use super::{Finding, Problem, Tree};
use crate::cli::{Cli, one_line};

/// What the rules need of one Markdown file.
#[derive(Debug, Default)]
struct Page {
    /// Names that `#name` may point to.
    anchors: Vec<String>,
    /// Where links lead, each with its line.
    links: Vec<(usize, String)>,
    /// What may be commands.
    code: Vec<Code>,
}

/// A piece of code on a page.
#[derive(Debug)]
struct Code {
    line: usize,
    text: String,
    stands: Stands,
}

/// Where a piece of code stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stands {
    /// In a block, to be typed as it is.
    Alone,
    /// In a sentence, which may name a command without its arguments.
    InText,
}

impl Page {
    fn parse(text: &str) -> Self {
        let line_at = |range: &Range<usize>| text[..range.start].matches('\n').count() + 1;
        let mut page = Self::default();
        let mut seen: HashMap<String, usize> = HashMap::new();
        let mut heading: Option<String> = None;
        let mut in_commands = false;
        for (event, range) in Parser::new(text).into_offset_iter() {
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    let slug = slug(&heading.take().unwrap_or_default());
                    let count = seen.entry(slug.clone()).or_default();
                    page.anchors.push(if *count == 0 { slug } else { format!("{slug}-{count}") });
                    *count += 1;
                }
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push((line_at(&range), dest_url.into_string()));
                }
                Event::Start(Tag::CodeBlock(kind)) => in_commands = is_shell(&kind),
                Event::End(TagEnd::CodeBlock) => in_commands = false,
                Event::Code(code) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&code);
                    }
                    let (line, text) = (line_at(&range), code.into_string());
                    page.code.push(Code { line, text, stands: Stands::InText });
                }
                Event::Text(piece) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&piece);
                    }
                    if in_commands {
                        page.push_commands(line_at(&range), &piece);
                    }
                }
                _ => {}
            }
        }
        page
    }

    fn push_commands(&mut self, first_line: usize, block: &str) {
        let mut continued: Option<Code> = None;
        for (index, part) in block.lines().enumerate() {
            let begun = Code { line: first_line + index, text: String::new(), stands: Stands::Alone };
            let mut code = continued.take().unwrap_or(begun);
            code.text.push_str(part.strip_suffix('\\').unwrap_or(part));
            if part.ends_with('\\') {
                continued = Some(code);
            } else {
                self.code.push(code);
            }
        }
        self.code.extend(continued);
    }
}

fn is_shell(kind: &CodeBlockKind<'_>) -> bool {
    match kind {
        CodeBlockKind::Fenced(language) => matches!(language.as_ref(), "sh" | "bash" | "shell" | "console"),
        CodeBlockKind::Indented => false,
    }
}

/// A heading's name in a link, as GitHub makes it.
fn slug(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    let pages: HashMap<&str, Page> =
        tree.texts(".md").map(|(path, text)| (path, Page::parse(text))).collect();
    for (path, _) in tree.texts(".md") {
        let page = &pages[path];
        let mut report =
            |line, problem| findings.push(Finding { path: path.to_owned(), line: Some(line), problem });
        for (line, link) in &page.links {
            if let Some(problem) = check_link(tree, &pages, path, link) {
                report(*line, problem);
            }
        }
        for code in &page.code {
            if let Some(problem) = check_command(code) {
                report(code.line, problem);
            }
        }
    }
}

fn check_link(tree: &Tree, pages: &HashMap<&str, Page>, path: &str, link: &str) -> Option<Problem> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = link.split_once('#').map_or((link, None), |(file, anchor)| (file, Some(anchor)));
    let broken = || Some(Problem::BrokenLink(link.to_owned()));
    let target = if file.is_empty() { path.to_owned() } else { resolve(path, file).unwrap_or_default() };
    if target.is_empty() || !tree.contains(&target) {
        return broken();
    }
    let anchors = &pages.get(target.as_str())?.anchors;
    let missing = anchor.is_some_and(|anchor| !anchors.iter().any(|known| known == anchor));
    missing.then(|| Problem::BrokenAnchor { link: link.to_owned(), file: target })
}

/// The path from the root that `link` on the page `path` means; none if it leaves the repository.
fn resolve(path: &str, link: &str) -> Option<String> {
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in link.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

fn check_command(code: &Code) -> Option<Problem> {
    let (_, arguments) = code.text.split_once("cargo xtask ")?;
    let arguments = arguments.split(['|', '>', ';', '&']).next().unwrap_or_default();
    let unknown =
        |reason: String| Some(Problem::UnknownCommand { command: code.text.trim().to_owned(), reason });
    let Some(words) = shlex::split(arguments) else { return unknown("a quote is not closed".to_owned()) };
    if words.is_empty() {
        return None;
    }
    let Err(error) = Cli::try_parse_from(std::iter::once("cargo xtask".to_owned()).chain(words)) else {
        return None;
    };
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => None,
        ErrorKind::MissingRequiredArgument | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            if code.stands == Stands::InText =>
        {
            None
        }
        _ => unknown(one_line(&error)),
    }
}
