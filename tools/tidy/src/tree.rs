//! Every file of the project, in memory: what git tracks or would track, without build output.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::Command;

/// The files of a project by their path from its root, with `/` between the parts.
#[derive(Debug, Default)]
pub struct Tree {
    /// `None` for a file that is not text.
    files: BTreeMap<String, Option<String>>,
}

impl Tree {
    /// A tree made by hand, for tests.
    #[must_use]
    pub fn of(files: &[(&str, &str)]) -> Self {
        let entry = |(path, text): &(&str, &str)| ((*path).to_owned(), Some((*text).to_owned()));
        Self { files: files.iter().map(entry).collect() }
    }

    /// Reads the project at `root`: the files that git lists, or every file outside build output where there
    /// is no git.
    ///
    /// # Errors
    /// When a folder or a file cannot be read.
    pub fn load(root: &Path) -> io::Result<Self> {
        let paths = match git_files(root) {
            Some(paths) => paths,
            None => walk(root)?,
        };
        let mut files = BTreeMap::new();
        for path in paths {
            let full = root.join(&path);
            // Git also lists files that were just removed, and links to folders.
            if full.is_file() {
                files.insert(path, text_of(std::fs::read(full)?));
            }
        }
        Ok(Self { files })
    }

    /// Number of files.
    #[must_use]
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Whether there is no file.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// The text of a file, if it exists and is text.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path)?.as_deref()
    }

    /// Every text file with its text.
    pub fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().filter_map(|(path, text)| Some((path.as_str(), text.as_deref()?)))
    }

    /// Every text file whose name ends with `.extension`.
    pub fn texts_of<'a>(&'a self, extension: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.texts().filter(move |(path, _)| extension_of(path) == Some(extension))
    }

    /// Every path.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// Whether `path` is a file.
    #[must_use]
    pub fn has_file(&self, path: &str) -> bool {
        self.files.contains_key(path)
    }

    /// Whether `path` is a file or a folder; the empty path is the root.
    #[must_use]
    pub fn has(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        path.is_empty() || self.has_file(path) || self.has_folder(path)
    }

    /// Whether `path` is a folder, written without a final `/`.
    #[must_use]
    pub fn has_folder(&self, path: &str) -> bool {
        let start = format!("{path}/");
        self.files.range(start.clone()..).next().is_some_and(|(file, _)| file.starts_with(&start))
    }
}

/// The folder that holds `path`; empty for the root.
#[must_use]
pub fn folder_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// The last part of `path`.
#[must_use]
pub fn name_of(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

/// What stands after the last dot of the file's name.
#[must_use]
pub fn extension_of(path: &str) -> Option<&str> {
    name_of(path).rsplit_once('.').map(|(_, extension)| extension)
}

/// Joins `path` to `folder` and takes `.` and `..` out; `None` when it leaves the project.
#[must_use]
pub fn join(folder: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    for part in folder.split('/').chain(path.split('/')) {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

fn text_of(bytes: Vec<u8>) -> Option<String> {
    if bytes.contains(&0) { None } else { String::from_utf8(bytes).ok() }
}

/// What git tracks or would track; `None` outside a checkout or without git.
fn git_files(root: &Path) -> Option<Vec<String>> {
    if !root.join(".git").exists() {
        return None;
    }
    let output = Command::new("git")
        .arg("-C")
        .arg(root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let listed = String::from_utf8(output.stdout).ok()?;
    Some(listed.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect())
}

fn walk(root: &Path) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root.join(&folder))? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
            if !entry.file_type()?.is_dir() {
                found.push(path);
            } else if name != "target" && name != ".git" {
                folders.push(path);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_exist_through_their_files() {
        let tree = Tree::of(&[("a/b/c.rs", ""), ("ab.md", "")]);
        assert!(tree.has("a") && tree.has("a/b/") && tree.has("a/b/c.rs") && tree.has(""));
        assert!(!tree.has("a/c") && !tree.has("a/b/c") && !tree.has("b"));
    }

    #[test]
    fn joining_takes_dots_out_and_stays_inside() {
        assert_eq!(join("docs", "../sim/a.scn").as_deref(), Some("sim/a.scn"));
        assert_eq!(join("", "./a").as_deref(), Some("a"));
        assert_eq!(join("docs", "../../a"), None);
    }

    #[test]
    fn loading_leaves_build_output_out_and_sees_files_that_are_not_text() {
        let root = std::env::temp_dir().join(format!("capos-tidy-{}", std::process::id()));
        std::fs::create_dir_all(root.join("target")).unwrap();
        std::fs::create_dir_all(root.join("src")).unwrap();
        std::fs::write(root.join("target/out.rs"), "x").unwrap();
        std::fs::write(root.join("src/lib.rs"), "//! x\n").unwrap();
        std::fs::write(root.join("src/blob"), [0, 255]).unwrap();
        let tree = Tree::load(&root);
        std::fs::remove_dir_all(&root).unwrap();
        let tree = tree.unwrap();
        assert_eq!(tree.paths().collect::<Vec<_>>(), ["src/blob", "src/lib.rs"]);
        assert_eq!(tree.text("src/lib.rs"), Some("//! x\n"));
        assert_eq!(tree.text("src/blob"), None);
    }
}
