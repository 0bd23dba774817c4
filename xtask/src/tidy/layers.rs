//! The arrows between crates: each may use only those below it.
//!
//! Main types: [`Layer`], [`Manifest`]. Neighbours: the drawing of the layers is in `docs/architecture.md`;
//! `dependencies` and `unsafety` read the same list.

use super::{Finding, Problem, Tree};

/// One crate's place in the layers.
#[derive(Debug)]
pub(super) struct Layer {
    /// Its directory.
    pub(super) directory: &'static str,
    /// Its package name.
    pub(super) package: &'static str,
}

const fn layer(directory: &'static str, package: &'static str) -> Layer {
    Layer { directory, package }
}

/// From the lowest to the highest.
pub(super) const LAYERS: &[Layer] = &[
    layer("crates/vmm", "concertina-vmm"),
    layer("crates/heap", "concertina-heap"),
    layer("crates/emulator", "concertina-emulator"),
    layer("crates/libcuda", "concertina-libcuda"),
    layer("crates/cuda", "concertina-cuda"),
    layer("crates/trace", "concertina-trace"),
    layer("crates/baselines", "concertina-baselines"),
    layer("crates/concertina", "concertina"),
    layer("crates/capi", "concertina-capi"),
    layer("benches/peer-capi", "concertina-peer-capi"),
    layer("benches", "concertina-bench"),
    layer("xtask", "xtask"),
];

/// Arrows that tests, and only tests, may draw upwards: the layers below the emulator are tested on it, and the CUDA driver
/// under the whole allocator.
const UPWARD_IN_TESTS: &[(&str, &str)] = &[
    ("concertina-vmm", "concertina-emulator"),
    ("concertina-heap", "concertina-emulator"),
    ("concertina-cuda", "concertina"),
];

/// What a dependency is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The crate itself, or its build script.
    Build,
    /// Its tests and benches.
    Test,
}

/// One dependency as a manifest states it.
#[derive(Debug)]
pub(super) struct Dependency {
    /// The package's name in the registry or the workspace.
    pub(super) package: String,
    /// What it is for.
    pub(super) purpose: Purpose,
    /// Whether it lies in the repository.
    pub(super) internal: bool,
}

/// A `Cargo.toml` as far as the rules need it.
#[derive(Debug)]
pub(super) struct Manifest {
    /// `package.name`, unless it is the workspace's.
    pub(super) package: Option<String>,
    /// All its dependencies, those for one target or the whole workspace included.
    pub(super) dependencies: Vec<Dependency>,
}

impl Manifest {
    /// Reads the text of a `Cargo.toml`.
    pub(super) fn parse(text: &str) -> Result<Self, Problem> {
        let root: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            Problem::BadToml(error.message().lines().next().unwrap_or_default().to_owned())
        })?;
        let package = root.get("package").and_then(|p| p.get("name")).and_then(toml::Value::as_str);
        let mut dependencies = Vec::new();
        collect(&root, &mut dependencies);
        if let Some(workspace) = root.get("workspace").and_then(toml::Value::as_table) {
            collect(workspace, &mut dependencies);
        }
        for target in
            root.get("target").and_then(toml::Value::as_table).into_iter().flat_map(toml::Table::values)
        {
            if let Some(target) = target.as_table() {
                collect(target, &mut dependencies);
            }
        }
        Ok(Self { package: package.map(str::to_owned), dependencies })
    }
}

fn collect(table: &toml::Table, dependencies: &mut Vec<Dependency>) {
    let kinds = [
        ("dependencies", Purpose::Build),
        ("build-dependencies", Purpose::Build),
        ("dev-dependencies", Purpose::Test),
    ];
    for (key, purpose) in kinds {
        for (name, value) in table.get(key).and_then(toml::Value::as_table).into_iter().flatten() {
            let package = value.get("package").and_then(toml::Value::as_str).unwrap_or(name).to_owned();
            let internal = value.get("path").is_some() || LAYERS.iter().any(|layer| layer.package == package);
            dependencies.push(Dependency { package, purpose, internal });
        }
    }
}

/// The line of `text` that states the dependency, counted from 1.
pub(super) fn line_of(text: &str, package: &str) -> Option<usize> {
    let states = |line: &str| {
        line.trim_start().strip_prefix(package).is_some_and(|rest| rest.starts_with(['.', ' ', '='])) || {
            line.contains(&format!("package = \"{package}\""))
        }
    };
    text.lines().position(states).map(|index| index + 1)
}

pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    for (path, text) in tree.texts("/Cargo.toml") {
        let mut report = |line, problem| findings.push(Finding { path: path.to_owned(), line, problem });
        let directory = path.trim_end_matches("/Cargo.toml");
        let Some(place) = LAYERS.iter().position(|layer| layer.directory == directory) else {
            report(None, Problem::UnknownCrate);
            continue;
        };
        let package = LAYERS[place].package;
        let manifest = match Manifest::parse(text) {
            Ok(manifest) => manifest,
            Err(problem) => {
                report(None, problem);
                continue;
            }
        };
        if manifest.package.as_deref() != Some(package) {
            let found = manifest.package.unwrap_or_default();
            report(line_of(text, "name"), Problem::WrongPackageName { expected: package, found });
        }
        for dependency in manifest.dependencies.into_iter().filter(|dependency| dependency.internal) {
            let below = LAYERS[..place].iter().any(|layer| layer.package == dependency.package);
            let tested_on = dependency.purpose == Purpose::Test
                && UPWARD_IN_TESTS.contains(&(package, dependency.package.as_str()));
            if !below && !tested_on {
                let line = line_of(text, &dependency.package);
                report(line, Problem::UpwardArrow { package, dependency: dependency.package });
            }
        }
    }
}
