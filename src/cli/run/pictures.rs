//! Pictures that go with a message: those that its text names, and those that `/image` attached before it.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail, ensure};
use images::{DecodeLimits, read_header};
use outside::read_regular;

use super::picture_paths::{listed, named};
use crate::chat::{self, Part, PictureSource};

/// The largest picture [MiB].
const MAX_MEBIBYTES: u64 = 20;
/// The most pictures of a message.
const MAX_PICTURES: usize = 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    path: PathBuf,
    width: u32,
    height: u32,
}

impl Picture {
    /// # Errors
    /// The file cannot be read, is too large, or is no picture that models read.
    fn open(path: &Path) -> anyhow::Result<Self> {
        let named = || path.display().to_string();
        let bytes = read_regular(path, MAX_MEBIBYTES << 20)
            .with_context(|| format!("{}: expected a picture of at most {MAX_MEBIBYTES} MiB", named()))?;
        let header = read_header(&bytes, &DecodeLimits::default()).with_context(named)?;
        Ok(Self { path: path.to_owned(), width: header.width, height: header.height })
    }

    fn part(&self) -> anyhow::Result<Part> {
        let bytes = read_regular(&self.path, MAX_MEBIBYTES << 20).with_context(|| self.path.display().to_string())?;
        Ok(Part::Picture(chat::Picture { source: PictureSource::File(bytes.into()), field: self.name().into(), substitute: None }))
    }

    fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// One line per picture, as a message names them.
pub fn lines(pictures: &[Picture]) -> String {
    let line = |(i, picture): (usize, &Picture)| format!("[picture {}: {}, {} × {}]", i + 1, picture.name(), picture.width, picture.height);
    pictures.iter().enumerate().map(line).collect::<Vec<_>>().join("\n")
}

/// Attaches the files that `/image` lists, all or none.
///
/// # Errors
/// One of them is no picture that models read, or there are too many.
pub fn attach(pictures: &mut Vec<Picture>, text: &str) -> anyhow::Result<()> {
    let paths = listed(text);
    check_count(pictures.len() + paths.len())?;
    pictures.extend(paths.iter().map(|path| Picture::open(path)).collect::<anyhow::Result<Vec<_>>>()?);
    Ok(())
}

fn check_count(count: usize) -> anyhow::Result<()> {
    ensure!(count <= MAX_PICTURES, "the message has {count} pictures, and {MAX_PICTURES} are allowed: leave some out");
    Ok(())
}

/// A message before it is sent.
#[derive(Debug, PartialEq, Eq)]
pub struct Draft {
    pub pictures: Vec<Picture>,
    pub text: String,
}

impl Draft {
    /// Attaches the pictures that the text names, after those that are attached already. In the text, their numbers replace their paths.
    ///
    /// # Errors
    /// A named file is no picture that models read, or there are too many pictures.
    pub fn new(text: &str, mut pictures: Vec<Picture>) -> anyhow::Result<Self> {
        let (mut out, mut end) = (String::new(), 0);
        for found in named(text) {
            let known = pictures.iter().position(|picture| picture.path == found.path);
            let number = match known {
                Some(i) => i + 1,
                None => {
                    check_count(pictures.len() + 1)?;
                    let hint = "write its name between backticks, if the text is about the name";
                    pictures.push(Picture::open(&found.path).map_err(|error| anyhow!("{error:#}; or {hint}"))?);
                    pictures.len()
                }
            };
            out += &text[end..found.range.start];
            out += &format!("[picture {number}]");
            end = found.range.end;
        }
        Ok(Self { pictures, text: out + &text[end..] })
    }

    /// The parts of the message: its pictures, and then its text.
    ///
    /// # Errors
    /// The model reads no pictures, or a file is gone.
    pub fn parts(&self, model: &str, reads_pictures: bool) -> anyhow::Result<Vec<Part>> {
        if let Some(first) = self.pictures.first().filter(|_| !reads_pictures) {
            bail!(
                "{model} reads no pictures, and {} is one: leave it out, or write its name between backticks if the text is about the name",
                first.path.display()
            );
        }
        let pictures = self.pictures.iter().map(Picture::part).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(pictures.into_iter().chain([Part::Text(self.text.clone())]).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// The smallest GIF: 1 × 1 pixels.
    const GIF: &[u8] = b"GIF89a\x01\0\x01\0\x80\0\0\xff\0\0\xff\xff\xff!\xf9\x04\x01\0\0\0\0,\0\0\0\0\x01\0\x01\0\0\x02\x02D\x01\0;";

    fn folder() -> (tempfile::TempDir, String) {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a.gif", "b c.png"] {
            fs::write(dir.path().join(name), GIF).unwrap();
        }
        let path = dir.path().display().to_string();
        (dir, path)
    }

    #[test]
    fn named_pictures_follow_attached_ones() {
        let (_dir, at) = folder();
        let mut attached = Vec::new();
        attach(&mut attached, &format!("{at}/a.gif")).unwrap();
        let draft = Draft::new(&format!("compare '{at}/b c.png' with {at}/a.gif, not {at}/gone.png"), attached).unwrap();
        assert_eq!(draft.text, format!("compare [picture 2] with [picture 1], not {at}/gone.png"));
        assert_eq!(lines(&draft.pictures), "[picture 1: a.gif, 1 × 1]\n[picture 2: b c.png, 1 × 1]");
        let error = draft.parts("m", false).unwrap_err().to_string();
        assert!(error.starts_with("m reads no pictures, and ") && error.contains("a.gif is one"), "{error}");
        let plain = Draft::new("no `a.gif` here", Vec::new()).unwrap();
        assert_eq!(plain.parts("m", false).unwrap(), [Part::Text("no `a.gif` here".into())]);
    }

    #[test]
    fn what_is_no_picture_is_refused() {
        let (_dir, at) = folder();
        fs::write(format!("{at}/d.bmp"), "BM").unwrap();
        fs::File::create(format!("{at}/large.png")).unwrap().set_len((MAX_MEBIBYTES << 20) + 1).unwrap();
        let mut attached = Vec::new();
        for (name, words) in [("d.bmp", "a BMP picture"), ("large.png", "20 MiB"), ("gone.png", "gone.png"), (".", at.as_str())] {
            let error = format!("{:#}", attach(&mut attached, &format!("{at}/a.gif {at}/{name}")).unwrap_err());
            assert!(error.contains(words), "{error}");
            assert!(attached.is_empty(), "all or none");
        }
        let error = format!("{:#}", Draft::new(&format!("see {at}/d.bmp"), Vec::new()).unwrap_err());
        assert!(error.contains("d.bmp: this is a BMP picture") && error.contains("between backticks"), "{error}");
    }

    #[test]
    fn a_message_has_so_many_pictures() {
        let (_dir, at) = folder();
        let mut attached = Vec::new();
        let list = vec![format!("{at}/a.gif"); MAX_PICTURES].join(" ");
        attach(&mut attached, &list).unwrap();
        let error = attach(&mut attached, &format!("{at}/a.gif")).unwrap_err().to_string();
        assert!(error.contains("21 pictures, and 20 are allowed"), "{error}");
        assert!(Draft::new(&format!("see '{at}/b c.png'"), attached).is_err());
    }
}
