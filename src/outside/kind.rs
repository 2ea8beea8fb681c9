//! Names kinds of files for errors.

use std::fs::FileType;
use std::os::unix::fs::FileTypeExt;

/// The kind of a file in the words of an error.
pub fn name(kind: FileType) -> &'static str {
    if kind.is_file() {
        "a regular file"
    } else if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else if kind.is_char_device() {
        "a character device"
    } else if kind.is_block_device() {
        "a block device"
    } else {
        "of an unknown kind"
    }
}
