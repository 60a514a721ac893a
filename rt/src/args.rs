//! The program's name and arguments.

use abi::{MAX_ARGS_BYTES, RuntimeBootInfo};

use crate::start::boot_info;

/// The program's name in the boot image.
pub fn program() -> &'static str {
    let name = &boot_info().name;
    let len = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    core::str::from_utf8(&name[..len]).unwrap_or("?")
}

/// The arguments, without the program's name. An argument that is not UTF-8 is left out.
pub fn args() -> impl Iterator<Item = &'static str> + Clone {
    let info = boot_info();
    let len = (info.args_len as usize).min(MAX_ARGS_BYTES);
    let first = (core::ptr::from_ref(info) as usize + size_of::<RuntimeBootInfo>()) as *const u8;
    // SAFETY: the kernel puts `args_len` bytes behind the structure, in the same page.
    let bytes = unsafe { core::slice::from_raw_parts(first, len) };
    let strings = bytes.strip_suffix(b"\0").unwrap_or(bytes).split(|&byte| byte == 0);
    strings.filter(move |_| len > 0).filter_map(|text| core::str::from_utf8(text).ok())
}

/// The argument at `index` as a number, or `default` if it is not there. `Err` with the text if it is no number.
pub fn number(index: usize, default: u64) -> Result<u64, &'static str> {
    args().nth(index).map_or(Ok(default), |text| text.parse().map_err(|_| text))
}
