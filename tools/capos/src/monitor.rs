//! The connection to QEMU's monitor (QMP): events of the machine, and commands to it.
//!
//! QEMU connects to a socket in a folder that no other user may enter: whoever can talk to the monitor can do what QEMU can.

use std::fs::DirBuilder;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Problem;
use crate::place::cannot;

/// How long the monitor may take for an answer; none of its commands takes long.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);
/// A counter, so that this process uses no folder name twice.
static FOLDERS: AtomicU32 = AtomicU32::new(0);

/// The longest path of a folder that can contain a socket: the socket's whole path has at most 107 bytes.
const FOLDER_BYTES_MAX: usize = 70;

/// A folder for temporary files whose path is short enough.
fn short(folder: PathBuf) -> PathBuf {
    if folder.as_os_str().len() <= FOLDER_BYTES_MAX { folder } else { "/tmp".into() }
}

/// A path as QEMU's properties need it: a single comma would begin the next property.
fn escaped(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

/// A monitor that QEMU connects to, now or soon.
pub struct Monitor {
    folder: PathBuf,
    stream: Arc<Mutex<Option<UnixStream>>>,
    answers: Receiver<Value>,
    commands: u64,
    /// Whether QEMU was told to end.
    is_quitting: bool,
}

impl Monitor {
    /// Listens for QEMU. `shutdown` is called with the reason when the machine was shut down or has reset itself, and is paused.
    ///
    /// # Errors
    /// When the socket cannot be created.
    pub fn listen(shutdown: impl Fn(String) + Send + 'static) -> Result<Monitor, Problem> {
        let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let folder = short(std::env::temp_dir()).join(format!("capos-{}-{number}", std::process::id()));
        // Removes what an earlier process with the same number has left.
        let _ = std::fs::remove_dir_all(&folder);
        DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .map_err(|error| cannot("make the folder", &folder, &error))?;
        let path = folder.join("qmp");
        let listener = UnixListener::bind(&path).map_err(|error| cannot("make the socket", &path, &error))?;
        let stream = Arc::new(Mutex::new(None));
        let (sender, answers) = channel();
        let shared = stream.clone();
        thread::spawn(move || {
            if let Ok((connection, _)) = listener.accept() {
                attend(connection, &shared, &sender, &shutdown);
            }
        });
        Ok(Monitor { folder, stream, answers, commands: 0, is_quitting: false })
    }

    /// QEMU's arguments for this monitor.
    #[must_use]
    pub fn arguments(&self) -> [String; 2] {
        ["-qmp".to_owned(), format!("unix:{}", escaped(&self.folder.join("qmp")))]
    }

    /// QEMU's arguments for a machine that gdb may attach to.
    #[must_use]
    pub fn stub_arguments(&self) -> [String; 2] {
        ["-gdb".to_owned(), format!("unix:{},server=on,wait=off", escaped(&self.stub_socket()))]
    }

    /// The socket on which QEMU listens for gdb.
    #[must_use]
    pub fn stub_socket(&self) -> PathBuf {
        self.folder.join("gdb")
    }

    /// A folder in which QEMU may leave files.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Sends a command to the monitor, and does not wait for the answer.
    ///
    /// # Errors
    /// When it is not connected.
    fn send(&mut self, command: &str, arguments: &Value) -> Result<u64, Problem> {
        self.commands += 1;
        let id = self.commands;
        let line = json!({"execute": command, "arguments": arguments, "id": id}).to_string();
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(stream) = stream.as_mut() else {
            return Err(Problem::new("QEMU's monitor is not connected"));
        };
        writeln!(stream, "{line}").map_err(|error| Problem(format!("QEMU's monitor: {error}")))?;
        Ok(id)
    }

    /// Ends QEMU. Sends the command only once: QEMU 10 crashes on a command that comes while it shuts its monitor down (K-24).
    pub fn quit(&mut self) {
        if !std::mem::replace(&mut self.is_quitting, true) {
            // It does not matter if QEMU has ended already.
            let _ = self.send("quit", &json!({}));
        }
    }

    /// Sends a command and returns the monitor's answer.
    ///
    /// # Errors
    /// When it refuses, or does not answer in time.
    pub fn ask(&mut self, command: &str, arguments: &Value) -> Result<Value, Problem> {
        let id = self.send(command, arguments)?;
        let end = Instant::now() + ANSWER_LIMIT;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let answer = self.answers.recv_timeout(left);
            let mut answer =
                answer.map_err(|_| Problem(format!("QEMU's monitor does not answer `{command}`")))?;
            if answer["id"] != id {
                continue;
            }
            if let Some(why) = answer["error"]["desc"].as_str() {
                return Err(Problem(format!("QEMU's monitor refuses `{command}`: {why}")));
            }
            return Ok(answer["return"].take());
        }
    }

    /// Sends a command to the monitor for people and returns its output.
    ///
    /// # Errors
    /// As [`Monitor::ask`].
    pub fn say(&mut self, command: &str) -> Result<String, Problem> {
        let answer = self.ask("human-monitor-command", &json!({"command-line": command}))?;
        Ok(answer.as_str().unwrap_or_default().to_owned())
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // Connects once, so that the thread that still waits for QEMU ends.
        let _ = UnixStream::connect(self.folder.join("qmp"));
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Reads the monitor's messages until the connection ends.
fn attend(
    connection: UnixStream,
    shared: &Mutex<Option<UnixStream>>,
    answers: &Sender<Value>,
    shutdown: &impl Fn(String),
) {
    let Ok(mut writer) = connection.try_clone() else { return };
    // The monitor takes no other command before this one.
    if writeln!(writer, "{}", json!({"execute": "qmp_capabilities"})).is_err() {
        return;
    }
    *shared.lock().unwrap_or_else(PoisonError::into_inner) = Some(writer);
    for line in BufReader::new(connection).lines() {
        let Ok(line) = line else { return };
        let Ok(message) = serde_json::from_str::<Value>(&line) else { continue };
        // QEMU's own end, by `quit`, is a shutdown event, too, but not one of the guest.
        if message["event"] == "SHUTDOWN" && message["data"]["guest"] == true {
            shutdown(message["data"]["reason"].as_str().unwrap_or_default().to_owned());
        } else if !message["id"].is_null() && answers.send(message).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays a monitor that answers with these lines.
    fn play(path: &Path, answers: &[&str]) -> Vec<String> {
        let mut stream = UnixStream::connect(path).unwrap();
        writeln!(stream, r#"{{"QMP": {{"version": {{}}}}}}"#).unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut heard = Vec::new();
        for answer in answers {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            heard.push(line);
            writeln!(stream, "{answer}").unwrap();
        }
        heard
    }

    #[test]
    fn k_27_events_and_answers_are_told_apart() {
        let (sender, reasons) = channel();
        let mut monitor = Monitor::listen(move |reason| drop(sender.send(reason))).unwrap();
        let [_, argument] = monitor.arguments();
        let path = PathBuf::from(argument.strip_prefix("unix:").unwrap());
        let event = r#"{"event": "SHUTDOWN", "data": {"guest": true, "reason": "guest-reset"}}"#;
        let first = format!("{{\"return\": {{}}}}\n{event}");
        let other = thread::spawn(move || {
            play(
                &path,
                &[
                    &first,
                    r#"{"return": "a\r\nb", "id": 1}"#,
                    r#"{"id": 2, "error": {"class": "x", "desc": "no such thing"}}"#,
                ],
            )
        });
        assert_eq!(reasons.recv_timeout(ANSWER_LIMIT).as_deref(), Ok("guest-reset"));
        assert_eq!(monitor.say("info registers -a"), Ok("a\r\nb".to_owned()));
        let refused = monitor.ask("pmemsave", &json!({})).unwrap_err().to_string();
        assert!(refused.contains("refuses `pmemsave`: no such thing"), "{refused}");
        let heard = other.join().unwrap();
        assert!(heard[0].contains("qmp_capabilities"), "{heard:?}");
        assert!(heard[1].contains(r#""command-line":"info registers -a""#), "{heard:?}");
    }

    /// K-24: when QEMU ends by `quit`, it reports a shutdown; a second `quit` then would crash it.
    #[test]
    fn k_24_qemu_is_told_to_quit_once() {
        let (sender, reasons) = channel();
        let mut monitor = Monitor::listen(move |reason| drop(sender.send(reason))).unwrap();
        let [_, argument] = monitor.arguments();
        let path = PathBuf::from(argument.strip_prefix("unix:").unwrap());
        let event = |guest: bool, reason: &str| {
            format!(r#"{{"event": "SHUTDOWN", "data": {{"guest": {guest}, "reason": "{reason}"}}}}"#)
        };
        let said = [format!("{{}}\n{}", event(true, "guest-shutdown")), event(false, "host-qmp-quit")];
        let other = thread::spawn(move || play(&path, &[&said[0], &said[1]]));
        assert_eq!(reasons.recv_timeout(ANSWER_LIMIT).unwrap(), "guest-shutdown");
        monitor.quit();
        monitor.quit();
        assert!(reasons.recv_timeout(Duration::from_millis(200)).is_err(), "its own end is told");
        assert_eq!(monitor.commands, 1, "told to quit twice");
        let heard = other.join().unwrap();
        assert!(heard[1].contains("quit"), "{heard:?}");
    }

    #[test]
    fn k_27_a_long_path_is_left_alone() {
        assert_eq!(short("/var/tmp".into()), Path::new("/var/tmp"));
        assert_eq!(short(format!("/{}", "x".repeat(FOLDER_BYTES_MAX)).into()), Path::new("/tmp"));
    }

    #[test]
    fn k_27_the_folder_is_private_and_goes() {
        use std::os::unix::fs::PermissionsExt;
        let mut monitor = Monitor::listen(|_| ()).unwrap();
        let folder = monitor.folder().to_path_buf();
        assert_eq!(folder.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        let absent = monitor.say("info registers").unwrap_err().to_string();
        assert!(absent.contains("not connected"), "{absent}");
        drop(monitor);
        assert!(!folder.exists());
    }
}
