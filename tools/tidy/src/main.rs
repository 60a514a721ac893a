//! `tidy [FOLDER]`: checks the project that holds FOLDER (default: the current folder), prints every problem
//! as `file:line: what is wrong, what to do` and exits with 1 if there is one.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tidy::{CHECKS, Tree};

fn main() -> ExitCode {
    let start = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("."), PathBuf::from);
    let Some(root) = project_root(&start) else {
        eprintln!(
            "tidy: no Cargo.toml with a [workspace] in {} or above it; name the project's folder",
            start.display()
        );
        return ExitCode::from(2);
    };
    let tree = match Tree::load(&root) {
        Ok(tree) => tree,
        Err(error) => {
            eprintln!("tidy: cannot read {}: {error}", root.display());
            return ExitCode::from(2);
        }
    };
    let problems = tidy::check(&tree);
    for problem in &problems {
        println!("{problem}");
    }
    let (files, checks, found) = (tree.len(), CHECKS.len(), problems.len());
    println!("tidy: {files} files, {checks} checks, {found} problems");
    if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The nearest folder at or above `start` that holds the workspace.
fn project_root(start: &Path) -> Option<PathBuf> {
    let start = start.canonicalize().ok()?;
    let is_root = |folder: &&Path| {
        std::fs::read_to_string(folder.join("Cargo.toml"))
            .is_ok_and(|text| text.lines().any(|line| line.trim() == "[workspace]"))
    };
    start.ancestors().find(is_root).map(Path::to_path_buf)
}
