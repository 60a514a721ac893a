//! Paths of the project and of its build output.

use std::path::{Path, PathBuf};

use crate::Problem;

/// The project's folder and the folder of its build output.
#[derive(Clone, Debug)]
pub struct Project {
    /// Where the workspace's `Cargo.toml` is.
    pub root: PathBuf,
    /// `target`, or the value of `CARGO_TARGET_DIR`.
    pub target: PathBuf,
}

impl Project {
    /// The project that contains the current folder.
    ///
    /// # Errors
    /// When there is none.
    pub fn find() -> Result<Project, Problem> {
        let start =
            std::env::current_dir().map_err(|error| Problem(format!("no current folder: {error}")))?;
        let is_root = |folder: &&Path| folder.join("tools/capos/Cargo.toml").is_file();
        let Some(root) = start.ancestors().find(is_root).map(Path::to_path_buf) else {
            return Err(Problem(format!(
                "{} is not in the project of capOS; go to its folder first",
                start.display()
            )));
        };
        let target = match std::env::var_os("CARGO_TARGET_DIR") {
            Some(folder) => start.join(folder),
            None => root.join("target"),
        };
        Ok(Project { root, target })
    }

    /// The manifest `name`, or the file if it is a path.
    #[must_use]
    pub fn manifest(&self, name: &str) -> PathBuf {
        if name.contains('/') || name.ends_with(".toml") {
            PathBuf::from(name)
        } else {
            self.root.join("manifests").join(format!("{name}.toml"))
        }
    }

    /// A file under the folder of build output; its folder is created.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn output(&self, folder: &str, file: &str) -> Result<PathBuf, Problem> {
        let folder = self.target.join(folder);
        make_folder(&folder)?;
        Ok(folder.join(file))
    }
}

/// Makes a folder and those above it.
///
/// # Errors
/// When it cannot be made.
pub fn make_folder(folder: &Path) -> Result<(), Problem> {
    std::fs::create_dir_all(folder).map_err(|error| cannot("make", folder, &error))
}

/// "cannot VERB PATH: why".
pub(crate) fn cannot(verb: &str, path: &Path, error: &std::io::Error) -> Problem {
    Problem(format!("cannot {verb} {}: {error}", path.display()))
}

/// Writes a file atomically: no reader ever sees a part of it.
///
/// # Errors
/// When it cannot be written.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Problem> {
    if let Some(folder) = path.parent() {
        make_folder(folder)?;
    }
    let mut draft = path.as_os_str().to_owned();
    draft.push(format!(".{}", std::process::id()));
    let draft = PathBuf::from(draft);
    std::fs::write(&draft, bytes)
        .and_then(|()| std::fs::rename(&draft, path))
        .map_err(|error| cannot("write", path, &error))
}
