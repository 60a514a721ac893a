//! Archives as Linux unpacks them at boot: cpio, format `newc` (the kernel's `Documentation/driver-api/early-userspace/buffer-format.rst`).
//!
//! An entry is a header of 110 characters (magic, then 13 numbers of 8 hexadecimal digits), the name with a zero byte, and the content;
//! name and content each end at a multiple of four bytes. The last entry is named `TRAILER!!!`.

const MAGIC: &str = "070701";
const LAST: &str = "TRAILER!!!";
/// Kinds of files, in the upper bits of the mode.
const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const DEVICE: u32 = 0o020_000;

/// An archive that grows.
#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    /// Adds a folder; its parent folders must have been added before.
    #[must_use]
    pub fn folder(self, name: &str) -> Archive {
        self.add(name, FOLDER | 0o755, [0; 2], &[])
    }

    /// Adds a program.
    #[must_use]
    pub fn program(self, name: &str, content: &[u8]) -> Archive {
        self.add(name, FILE | 0o755, [0; 2], content)
    }

    /// Adds a character device.
    #[must_use]
    pub fn device(self, name: &str, major: u32, minor: u32) -> Archive {
        self.add(name, DEVICE | 0o600, [major, minor], &[])
    }

    /// The archive's bytes.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.add(LAST, 0, [0; 2], &[]).bytes
    }

    fn add(mut self, name: &str, mode: u32, [major, minor]: [u32; 2], content: &[u8]) -> Archive {
        self.entries += 1;
        // Everything here is much smaller than the format's 4 GiB.
        let (size, name_size) = (content.len() as u32, name.len() as u32 + 1);
        // Number, mode, owner, group, links, time, size, the device it lies on (2), the device it is (2), size of the name, check sum.
        let fields = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, major, minor, name_size, 0];
        self.bytes.extend_from_slice(MAGIC.as_bytes());
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(content);
        self.align();
        self
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name, mode, device and content of each entry, read by the format's rules and not by the writer's code.
    fn read(bytes: &[u8]) -> Vec<(String, u32, [u32; 2], Vec<u8>)> {
        let mut found = Vec::new();
        let mut at = 0;
        loop {
            let header = std::str::from_utf8(&bytes[at..at + 110]).unwrap();
            assert!(header.starts_with("070701"), "no magic at {at}");
            let field =
                |index: usize| u32::from_str_radix(&header[6 + index * 8..14 + index * 8], 16).unwrap();
            let (size, name_size) = (field(6) as usize, field(11) as usize);
            let name = &bytes[at + 110..at + 110 + name_size];
            assert_eq!(name.last(), Some(&0));
            let content = (at + 110 + name_size).div_ceil(4) * 4;
            at = (content + size).div_ceil(4) * 4;
            let name = String::from_utf8(name[..name_size - 1].to_vec()).unwrap();
            if name == "TRAILER!!!" {
                assert_eq!(at, bytes.len());
                return found;
            }
            found.push((name, field(1), [field(9), field(10)], bytes[content..content + size].to_vec()));
        }
    }

    #[test]
    fn what_was_packed_is_read_again() {
        let archive = Archive::default()
            .folder("dev")
            .device("dev/console", 5, 1)
            .program("init", b"12345")
            .program("a", b"")
            .program("bc", &[7; 4]);
        let entries = read(&archive.finish());
        let names: Vec<&str> = entries.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(names, ["dev", "dev/console", "init", "a", "bc"]);
        assert_eq!(entries[0].1, 0o040_755);
        assert_eq!((entries[1].1, entries[1].2), (0o020_600, [5, 1]));
        assert_eq!((entries[2].1, &entries[2].3[..]), (0o100_755, &b"12345"[..]));
        assert_eq!(entries[4].3, [7; 4]);
    }

    #[test]
    fn an_empty_archive_is_its_last_entry() {
        assert_eq!(read(&Archive::default().finish()), []);
    }
}
