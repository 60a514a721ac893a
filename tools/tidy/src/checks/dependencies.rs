//! Every foreign crate has its line in the dependencies page: its purpose, and why this one.

use crate::tree::name_of;
use crate::{Problem, Tree};

const PAGE: &str = "docs/dependencies.md";

/// Every dependency of every `Cargo.toml` that is not a crate of this project is named in backticks in
/// the page.
pub(crate) fn dependencies(tree: &Tree) -> Vec<Problem> {
    let page = tree.text(PAGE).unwrap_or("");
    let manifests = || tree.texts().filter(|(path, _)| name_of(path) == "Cargo.toml");
    let ours: Vec<&str> = manifests().filter_map(|(_, text)| package_name(text)).collect();
    let mut problems = Vec::new();
    for (file, text) in manifests() {
        for (line, name) in named(text) {
            if !ours.contains(&name) && !page.contains(&format!("`{name}`")) {
                let what = format!("dependency `{name}` has no line in {PAGE}, say there what it is for");
                problems.push(Problem::new(file, line, what));
            }
        }
    }
    problems
}

fn package_name(manifest: &str) -> Option<&str> {
    let package = manifest.split("[package]").nth(1)?;
    let line = package.lines().find(|line| line.starts_with("name"))?;
    line.split('"').nth(1)
}

/// Every dependency of a manifest with its line, under the name that the registry knows.
fn named(manifest: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut in_table = false;
    for (at, line) in manifest.lines().enumerate() {
        let line = line.trim();
        if let Some(header) = line.strip_prefix('[') {
            let header = header.trim_matches(['[', ']']);
            in_table = is_dependency_table(header);
            // `[dependencies.name]`: one dependency as a table of its own.
            if let Some((table, name)) = header.rsplit_once('.')
                && is_dependency_table(table)
            {
                found.push((at + 1, name));
                in_table = false;
            }
        } else if in_table
            && !line.starts_with('#')
            && let Some((name, value)) = line.split_once('=')
        {
            let name = name.trim().split('.').next().unwrap_or(name).trim_matches('"');
            let renamed = value.split_once("package").and_then(|(_, rest)| rest.split('"').nth(1));
            found.push((at + 1, renamed.unwrap_or(name)));
        }
    }
    found
}

fn is_dependency_table(header: &str) -> bool {
    matches!(header.rsplit('.').next(), Some("dependencies" | "dev-dependencies" | "build-dependencies"))
}

#[cfg(test)]
mod tests {
    use super::super::assert_catches;
    use super::*;

    #[test]
    fn every_dependency_is_explained() {
        let ours = ("b/Cargo.toml", "[package]\nname = \"b\"\n");
        let page = ("docs/dependencies.md", "| `loom` | models |\n");
        let good = [
            ours,
            page,
            ("a/Cargo.toml", "[dependencies]\nb.workspace = true\nloom = \"1\"\n[lints]\nx = 1\n"),
        ];
        for text in [
            "[dev-dependencies]\nmystery = \"1\"\n",
            "[dependencies]\nb = { package = \"mystery\", version = \"1\" }\n",
            "[workspace.dependencies]\nmystery.version = \"1\"\n",
            "[target.'cfg(loom)'.dependencies]\nmystery = { version = \"1\" }\n",
            "\n[dependencies.mystery]\n",
        ] {
            assert_catches(
                dependencies,
                &good,
                &[ours, page, ("a/Cargo.toml", text)],
                "a/Cargo.toml:2",
                "`mystery`",
            );
        }
    }
}
