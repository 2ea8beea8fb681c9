//! `FILE_TYPES`: one row per file type.

/// A file type: the type of most of a file's matrices, and the rule that chooses the others.
#[derive(Debug, PartialEq, Eq)]
pub struct FileType {
    pub name: &'static str,
    /// The value of `general.file_type`.
    pub id: u32,
    /// The tensor type of most matrices.
    pub base: u32,
}

const fn row(name: &'static str, id: u32, base: u32) -> FileType {
    FileType { name, id, base }
}

pub static FILE_TYPES: &[FileType] = &[
    row("F32", 0, 0),
    row("F16", 1, 1),
    row("BF16", 32, 30),
    row("Q8_0", 7, 8),
    row("Q6_K", 18, 14),
    row("Q5_K_M", 17, 13),
    row("Q5_K_S", 16, 13),
    row("Q5_1", 9, 7),
    row("Q5_0", 8, 6),
    row("Q4_K_M", 15, 12),
    row("Q4_K_S", 14, 12),
    row("Q4_1", 3, 3),
    row("Q4_0", 2, 2),
    row("IQ4_NL", 25, 20),
    row("IQ4_XS", 30, 23),
    row("Q3_K_L", 13, 11),
    row("Q3_K_M", 12, 11),
    row("Q3_K_S", 11, 11),
    row("Q2_K", 10, 10),
    row("Q2_K_S", 21, 10),
    row("TQ2_0", 37, 35),
    row("TQ1_0", 36, 34),
    row("MXFP4_MOE", 38, 39),
];

impl FileType {
    /// The file type with this name, in any case. `Q4_K` means `Q4_K_M`, and so on.
    pub fn by_name(name: &str) -> Option<&'static FileType> {
        let name = name.to_ascii_uppercase();
        let name = match name.as_str() {
            "Q3_K" | "Q4_K" | "Q5_K" => format!("{name}_M"),
            _ => name,
        };
        FILE_TYPES.iter().find(|kind| kind.name == name)
    }

    pub(crate) fn is(&self, names: &[&str]) -> bool {
        names.contains(&self.name)
    }
}
