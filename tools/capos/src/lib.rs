//! The host tool of capOS, as a library: manifests become bytes, programs become boot images, images are booted in QEMU.

pub mod manifest;
