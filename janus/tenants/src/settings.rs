//! The file that lists the tenants: a line of words for each.
//!
//! ```text
//! # NAME  MODULE      what it may do and use
//! hello   hello.wat   grant io  request ops=50k,memory=1M,io=10  period 1s ops=50M,memory=32M,io=10k
//! limits  head 2s  body 5s  idle 30s  write 5s  connections 256  head-bytes 8192  body-bytes 65536
//! ```

use crate::http::Limits;
use crate::tenant::{Tenant, Terms};
use janus::Budget;
use janus_guest::amount::{PARTS, budget, duration, named};
use janus_guest::{Grants, Program};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The contents of the file.
pub struct Settings {
    /// The tenants.
    pub tenants: Vec<Tenant>,
    /// The limits of a connection.
    pub limits: Limits,
    /// The most connections.
    pub connections: usize,
}

/// What a request may use by default.
const REQUEST: Budget =
    Budget { ops: 1_000_000, memory: 1 << 20, spawn_count: 0, channel_ops: 0, syscalls: 100 };
/// What all requests of a second may use by default.
const PURSE: Budget =
    Budget { ops: 100_000_000, memory: 32 << 20, spawn_count: 1_000, channel_ops: 10_000, syscalls: 10_000 };
const TIMEOUT: Duration = Duration::from_secs(2);
const CONNECTIONS: usize = 256;

impl Settings {
    /// Reads the file. Modules are looked for beside it, in `guests` there, and in the other folders.
    /// A refused module affects only its tenant; a malformed line is an error, with its number.
    pub fn read(file: &Path, folders: &[PathBuf]) -> Result<Settings, String> {
        let text = std::fs::read_to_string(file)
            .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
        let beside = file.parent().unwrap_or(Path::new("."));
        let folders: Vec<PathBuf> = [beside.to_path_buf(), beside.join("guests")]
            .into_iter()
            .chain(folders.iter().cloned())
            .collect();
        Settings::parse(&text, &folders).map_err(|(line, why)| format!("{}:{line}: {why}", file.display()))
    }

    fn parse(text: &str, folders: &[PathBuf]) -> Result<Settings, (usize, String)> {
        let mut settings =
            Settings { tenants: Vec::new(), limits: Limits::default(), connections: CONNECTIONS };
        for (index, line) in text.lines().enumerate() {
            let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
            let at = |why| (index + 1, why);
            match words.next() {
                None => {}
                Some("limits") => settings.limits(words).map_err(at)?,
                Some(name) if settings.tenants.iter().any(|tenant| tenant.name == name) => {
                    return Err(at(format!("there are two tenants `{name}`")));
                }
                Some("-") => return Err(at("the name `-` is the server's own".to_string())),
                Some(name) if !name.bytes().all(|c| c.is_ascii_alphanumeric() || b"-_.~".contains(&c)) => {
                    return Err(at(format!(
                        "no path begins with `{name}`: take letters, digits, `-`, `_`, `.`"
                    )));
                }
                Some(name) => settings.tenants.push(tenant(name, words, folders).map_err(at)?),
            }
        }
        Ok(settings)
    }

    fn limits<'a>(&mut self, mut words: impl Iterator<Item = &'a str>) -> Result<(), String> {
        while let Some(key) = words.next() {
            let value = words.next().ok_or_else(|| format!("`{key}` has no value"))?;
            let number = || value.parse().map_err(|_| format!("`{value}` is no number"));
            let limits = &mut self.limits;
            match key {
                "head" => limits.head = duration(value)?,
                "body" => limits.body = duration(value)?,
                "idle" => limits.idle = duration(value)?,
                "write" => limits.write = duration(value)?,
                "head-bytes" => limits.head_bytes = number()?,
                "body-bytes" => limits.body_bytes = number()?,
                "connections" => self.connections = number()?,
                other => {
                    let there = "head, body, idle, write, head-bytes, body-bytes and connections";
                    return Err(format!("there is no limit `{other}`; there are {there}"));
                }
            }
        }
        Ok(())
    }
}

fn tenant<'a>(
    name: &str,
    mut words: impl Iterator<Item = &'a str>,
    folders: &[PathBuf],
) -> Result<Tenant, String> {
    let module = words.next().ok_or("which module? write NAME MODULE")?;
    let mut terms =
        Terms { request: REQUEST, purse: PURSE, period: Duration::from_secs(1), timeout: TIMEOUT };
    let mut grants = Grants::NONE;
    let mut links = Vec::new();
    let mut seen = Vec::new();
    while let Some(key) = words.next() {
        if key != "link" && seen.contains(&key) {
            return Err(format!("`{key}` twice"));
        }
        seen.push(key);
        let mut value = || words.next().ok_or_else(|| format!("`{key}` has no value"));
        match key {
            "grant" => {
                for grant in value()?.split(',') {
                    grants = grants.with(grant.parse()?);
                }
            }
            "request" => terms.request = budget(value()?, terms.request)?,
            "period" => {
                terms.period = duration(value()?)?;
                terms.purse = budget(value()?, terms.purse)?;
            }
            "timeout" => terms.timeout = duration(value()?)?,
            "link" => links.push(named(value()?)?),
            other => return Err(format!("`{other}`: there are grant, request, period, timeout and link")),
        }
    }
    if terms.period.is_zero() {
        return Err("a period of nothing".to_string());
    }
    if let Some((part, _)) = PARTS.into_iter().find(|&(_, r)| terms.request.get(r) > terms.purse.get(r)) {
        return Err(format!("a request may use more {part} than a whole period has: none would be served"));
    }
    Ok(Tenant::new(name.to_string(), program(module, &links, grants, folders), terms))
}

/// A module from its file, binary or text, and the modules that it is linked with.
fn program(
    module: &str,
    links: &[(String, PathBuf)],
    grants: Grants,
    folders: &[PathBuf],
) -> Result<Program, String> {
    let read = |path: &Path| {
        let found = folders.iter().map(|folder| folder.join(path)).find(|path| path.exists());
        let found = found.ok_or_else(|| {
            let places: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
            format!("there is no {} in {}", path.display(), places.join(", "))
        })?;
        let bytes = std::fs::read(&found).map_err(|error| error.to_string())?;
        wat::parse_bytes(&bytes).map(std::borrow::Cow::into_owned).map_err(|error| {
            // The first line of the error says what is wrong; the others draw the place.
            let text = error.to_string();
            format!("no module: {}", text.lines().next().unwrap_or_default())
        })
    };
    let wasm = read(Path::new(module))?;
    let linked = links
        .iter()
        .map(|(name, path)| Ok((name.as_str(), read(path)?)))
        .collect::<Result<Vec<_>, String>>()?;
    let linked: Vec<(&str, &[u8])> = linked.iter().map(|(name, wasm)| (*name, wasm.as_slice())).collect();
    Program::link(&wasm, &linked, grants).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn j_12_lines_are_read() {
        let text = "# nothing\nlimits head 2s connections 9\na none.wat grant io,spawn request ops=5 period 2s ops=7\n";
        let settings = Settings::parse(text, &[]).expect("it makes sense");
        assert_eq!((settings.connections, settings.limits.head), (9, Duration::from_secs(2)));
        let tenant = &settings.tenants[0];
        assert_eq!((tenant.terms.request.ops, tenant.terms.purse.ops), (5, 7));
        assert_eq!(tenant.terms.period, Duration::from_secs(2));
        assert!(tenant.refused().is_some_and(|why| why.contains("there is no none.wat")));
        for (text, line, said) in [
            ("\na", 2, "which module"),
            ("a b\na b", 2, "two tenants"),
            ("- b", 1, "the server's own"),
            ("a/b c", 1, "no path begins with"),
            ("a b request ops=1 request ops=2", 1, "`request` twice"),
            ("a b request ops=9 period 1s ops=8", 1, "more ops than a whole period"),
            ("a b grant fly", 1, "there is no grant `fly`"),
            ("a b request ops", 1, "has no amount"),
            ("a b period 1s", 1, "has no value"),
            ("a b period 0s ops=1", 1, "a period of nothing"),
            ("a b speed 9", 1, "there are grant"),
            ("limits tail 2s", 1, "there is no limit"),
            ("limits head", 1, "has no value"),
        ] {
            let (at, why) = Settings::parse(text, &[]).map(drop).expect_err(text);
            assert!(at == line && why.contains(said), "{text}: {at}: {why}");
        }
    }
}
