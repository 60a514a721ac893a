//! A disc that boots the same kernel and image with GRUB (Multiboot2), by BIOS and by UEFI.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Problem;
use crate::options::fit;
use crate::package::strip;
use crate::place::{cannot, make_folder, write_file};

/// Environment variable that names a UEFI firmware outside the usual places.
pub const FIRMWARE_VARIABLE: &str = "CAPOS_OVMF";
/// Where systems keep the UEFI firmware for QEMU, code and variables in one file.
const FIRMWARES: [&str; 5] = [
    "/usr/share/ovmf/OVMF.fd",
    "/usr/share/OVMF/OVMF.fd",
    "/usr/share/edk2/ovmf/OVMF.fd",
    "/usr/share/edk2-ovmf/x64/OVMF.fd",
    "/usr/share/edk2/x64/OVMF.4m.fd",
];

/// GRUB's configuration. GRUB also uses the serial line, as the kernel will.
fn menu(options: &str) -> String {
    format!(
        "serial --unit=0 --speed=115200\n\
         terminal_input console serial\n\
         terminal_output console serial\n\
         set timeout=0\n\
         menuentry \"capOS\" {{\n  \
           multiboot2 /boot/kernel {options}\n  \
           module2 /boot/image\n\
         }}\n"
    )
}

/// Writes the disc `output` with `kernel` and `image` on it; the kernel gets the boot options `options`.
///
/// # Errors
/// When the tools that make discs are missing or fail.
pub fn make(kernel: &Path, image: &Path, options: &str, output: &Path) -> Result<(), Problem> {
    if options.contains(['\n', '{', '}', ';', '"', '\'', '$', '\\']) {
        return Err(Problem(format!("boot options of a disc are plain words, not `{options}`")));
    }
    fit(options)?;
    let mut tree = output.as_os_str().to_owned();
    tree.push(format!(".tree.{}", std::process::id()));
    let tree = PathBuf::from(tree);
    let made = fill(&tree, kernel, image, options).and_then(|()| press(&tree, output));
    let _ = std::fs::remove_dir_all(&tree);
    made
}

fn fill(tree: &Path, kernel: &Path, image: &Path, options: &str) -> Result<(), Problem> {
    let boot = tree.join("boot");
    make_folder(&boot.join("grub"))?;
    write_file(&boot.join("kernel"), &strip(kernel)?)?;
    std::fs::copy(image, boot.join("image")).map_err(|error| cannot("copy", image, &error))?;
    write_file(&boot.join("grub/grub.cfg"), menu(options).as_bytes())
}

fn press(tree: &Path, output: &Path) -> Result<(), Problem> {
    let next = "install what it needs with: tools/setup.sh iso";
    let mut draft = output.as_os_str().to_owned();
    draft.push(format!(".{}", std::process::id()));
    let draft = PathBuf::from(draft);
    let made = Command::new("grub-mkrescue").arg("-o").arg(&draft).arg(tree).output();
    let made = made.map_err(|error| Problem(format!("cannot run grub-mkrescue: {error}; {next}")))?;
    let said = String::from_utf8_lossy(&made.stderr).into_owned();
    // Without mtools or without a platform's files it says so, and makes an incomplete disc.
    if !made.status.success() || !draft.is_file() {
        return Err(Problem(format!("{said}grub-mkrescue makes no disc; {next}")));
    }
    std::fs::rename(&draft, output).map_err(|error| cannot("write", output, &error))
}

/// The UEFI firmware of this machine.
///
/// # Errors
/// When there is none.
pub fn firmware() -> Result<PathBuf, Problem> {
    if let Some(named) = std::env::var_os(FIRMWARE_VARIABLE) {
        return Ok(named.into());
    }
    FIRMWARES.iter().map(PathBuf::from).find(|file| file.is_file()).ok_or_else(|| {
        Problem(format!(
            "there is no UEFI firmware; install it with: tools/setup.sh iso, or name one: {FIRMWARE_VARIABLE}=file"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_menu_boots_the_kernel_with_its_image_and_options() {
        let text = menu("pit maxcpus=2");
        assert!(
            text.contains("\n  multiboot2 /boot/kernel pit maxcpus=2\n  module2 /boot/image\n}\n"),
            "{text}"
        );
    }

    #[test]
    fn options_cannot_write_into_the_menu() {
        let none = Path::new("none");
        let problem = make(none, none, "pit\n}", none).unwrap_err().to_string();
        assert!(problem.contains("plain words"), "{problem}");
    }
}
