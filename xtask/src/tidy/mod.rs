//! The house rules that the compiler does not know, checked over the files of the repository.
//!
//! Each rule is a function from a [`Tree`] to [`Finding`]s in its own file. Its tests show that it
//! finds a violation in an artificial tree. Only [`Tree::read`] reads the disk.

mod daytime;
mod formats;
mod layers;
mod map;
mod names;
mod purity;
mod sentences;
mod source;
mod text;
mod unsafety;
mod width;
mod words;

use std::{cell::OnceCell, collections::BTreeMap, fmt, fs, path::Path, process::Command};

use anyhow::{Context, Result, anyhow};

use self::source::Source;

/// The text files of a repository by their path from its root, without files that are not UTF-8.
#[derive(Default)]
pub struct Tree {
    files: BTreeMap<String, String>,
    /// The split Rust files, once a rule asks for them.
    sources: OnceCell<BTreeMap<String, Source>>,
}

impl Tree {
    /// Reads the files under `root` that git does not ignore, or all files without git.
    ///
    /// # Errors
    /// A folder or file cannot be read.
    pub fn read(root: &Path) -> Result<Self> {
        let listed = Command::new("git")
            .args(["ls-files", "--cached", "--others", "--exclude-standard"])
            .current_dir(root)
            .output();
        let paths = match listed {
            Ok(output) if output.status.success() && root.join(".git").exists() => {
                String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
            }
            _ => walk(root, "")?,
        };
        let mut files = BTreeMap::new();
        for path in paths {
            // A tracked file may have been deleted in the work tree.
            let Ok(bytes) = fs::read(root.join(&path)) else { continue };
            if let Ok(text) = String::from_utf8(bytes) {
                files.insert(path, text);
            }
        }
        Ok(Self { files, ..Self::default() })
    }

    /// Builds an artificial tree for tests.
    #[must_use]
    pub fn of(files: &[(&str, &str)]) -> Self {
        let files = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        Self { files, ..Self::default() }
    }

    /// Returns the text of the file at `path`.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// Returns path and text of all files.
    pub fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Returns path and text of all Rust files.
    pub fn rust(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files().filter(|(path, _)| path.ends_with(".rs"))
    }

    /// Returns all Rust files by path, split into code and comments.
    fn sources(&self) -> &BTreeMap<String, Source> {
        let split = |(path, text): (&str, &str)| (path.to_owned(), Source::of(text));
        self.sources.get_or_init(|| self.rust().map(split).collect())
    }

    /// Returns true if a file or folder with this path exists.
    #[must_use]
    pub fn exists(&self, path: &str) -> bool {
        let folder = format!("{path}/");
        path.is_empty()
            || self.files.contains_key(path)
            || self.files.keys().any(|file| file.starts_with(&folder))
    }
}

fn walk(root: &Path, under: &str) -> Result<Vec<String>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(root.join(under)).with_context(|| format!("cannot list {under}"))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if under.is_empty() { name.clone() } else { format!("{under}/{name}") };
        match entry.file_type()? {
            kind if kind.is_dir() && !matches!(name.as_str(), ".git" | "target" | "plexus-out") => {
                paths.extend(walk(root, &path)?);
            }
            kind if kind.is_file() => paths.push(path),
            _ => {}
        }
    }
    Ok(paths)
}

/// Returns true if a list of files and folders (with a `/` at the end) has this path.
fn is_listed(list: &[&str], path: &str) -> bool {
    list.iter().any(|entry| if entry.ends_with('/') { path.starts_with(entry) } else { path == *entry })
}

/// A line or file that breaks a rule.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Finding {
    /// The file, from the root of the repository.
    pub file: String,
    /// The line, counted from 1; 0 for the file as a whole.
    pub line: usize,
    /// The violation and its remedy.
    pub what: String,
}

impl Finding {
    fn new(file: &str, line: usize, what: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line, what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.what),
            line => write!(f, "{}:{line}: {}", self.file, self.what),
        }
    }
}

/// Checks all rules and returns the findings in the order of files and lines.
#[must_use]
pub fn check(tree: &Tree) -> Vec<Finding> {
    let rules = [
        daytime::check,
        formats::check,
        layers::check,
        map::crates,
        map::links,
        names::check,
        purity::check,
        sentences::check,
        text::check,
        unsafety::check,
        width::check,
        words::identifiers,
        words::phrases,
    ];
    let mut findings: Vec<_> = rules.iter().flat_map(|rule| rule(tree)).collect();
    findings.sort();
    findings
}

/// Updates the parts of the documents that are copies of code.
///
/// # Errors
/// A copy has no source or no end marker, or the document cannot be written.
pub fn fix(root: &Path) -> Result<()> {
    let fresh = formats::refreshed(&Tree::read(root)?).map_err(|finding| anyhow!("{finding}"))?;
    fs::write(root.join(formats::FILE), fresh).with_context(|| format!("cannot write {}", formats::FILE))
}

pub use text::long_files;

#[cfg(test)]
pub(crate) mod testing {
    use super::{Finding, Tree};

    /// Asserts that `rule` finds exactly these (file, line, part of the message) in `files`.
    #[track_caller]
    pub(crate) fn finds(
        rule: fn(&Tree) -> Vec<Finding>,
        files: &[(&str, &str)],
        expect: &[(&str, usize, &str)],
    ) {
        let mut found = rule(&Tree::of(files));
        found.sort();
        let right = found.len() == expect.len()
            && found
                .iter()
                .zip(expect)
                .all(|(f, (file, line, what))| f.file == *file && f.line == *line && f.what.contains(what));
        assert!(right, "expected {expect:?}, found {found:#?}");
    }

    /// Asserts that `rule` finds exactly these (line, part of the message) in a file.
    #[track_caller]
    pub(crate) fn finds_in(
        rule: fn(&Tree) -> Vec<Finding>,
        path: &str,
        text: &str,
        expect: &[(usize, &str)],
    ) {
        let expect: Vec<_> = expect.iter().map(|(line, what)| (path, *line, *what)).collect();
        finds(rule, &[(path, text)], &expect);
    }
}
