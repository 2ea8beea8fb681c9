//! [`EncodedPrompt`]: the ids of a prompt, and the pictures between them.

use std::sync::Arc;

use super::error::RequestError;
use super::pictures::{MAX_PICTURES, MAX_PIXELS, PictureError, PictureRules};
use chat::{Picture, PictureSource, Rendered};
use images::{DecodeLimits, PicturePlan, PlanChunk, read_header};
use scheduler::{Items, RowRun};

/// Stands for a picture in the result of a tool that cannot be read.
const UNREADABLE: &str = "[an image was left out: it cannot be read]";

/// Encodes a text, given whether it begins the prompt.
type Encode<'a> = dyn Fn(&str, bool) -> Result<Vec<u32>, RequestError> + 'a;

/// A prompt whose pictures are planned and not yet encoded: its length is known.
#[derive(Clone, Debug, Default)]
pub(crate) struct EncodedPrompt {
    pub ids: Vec<u32>,
    pub pictures: Vec<PlannedPicture>,
}

/// A picture of a prompt.
#[derive(Clone, Debug)]
pub(crate) struct PlannedPicture {
    pub file: Arc<[u8]>,
    pub field: Arc<str>,
    /// The runs of rows without embeddings, each with the number of the prompt's ids before it.
    runs: Vec<(usize, RowRun)>,
}

impl EncodedPrompt {
    /// Encodes a rendered prompt.
    ///
    /// # Errors
    /// Names the picture that cannot be read, or as `encode`.
    pub fn new(prompt: &Rendered, rules: Option<&PictureRules>, encode: &Encode) -> Result<Self, RequestError> {
        // A long text is not copied.
        if let ([text], []) = (&prompt.texts[..], &prompt.pictures[..]) {
            return Ok(encode(text, true)?.into());
        }
        let mut out = Self::default();
        let (mut open, mut pixels) = (String::new(), 0);
        for (number, text) in prompt.texts.iter().enumerate() {
            open.push_str(text);
            let Some(picture) = prompt.pictures.get(number) else { continue };
            let refused = |error| RequestError::Picture { field: picture.field.clone(), error };
            let rules = rules.ok_or_else(|| refused(PictureError::OnlyText))?;
            let (file, plan) = match planned(picture, rules, number, &mut pixels) {
                Ok(planned) => planned,
                // An agent repeats the results of its tools with every request.
                Err(_) if picture.substitute.is_some() => {
                    open.push_str(UNREADABLE);
                    continue;
                }
                Err(error) => return Err(refused(error)),
            };
            let mut planned = PlannedPicture { file, field: picture.field.clone(), runs: Vec::new() };
            let mut runs = rules.planned(&plan).into_iter();
            for chunk in &plan.chunks {
                match chunk {
                    PlanChunk::Text(text) => open.push_str(text),
                    PlanChunk::Rows(_) => {
                        out.push(&mut open, encode)?;
                        planned.runs.extend(runs.next().map(|run| (out.ids.len(), run)));
                    }
                }
            }
            out.pictures.push(planned);
        }
        out.push(&mut open, encode)?;
        Ok(out)
    }

    /// Adds the ids of the text since the last rows.
    fn push(&mut self, text: &mut String, encode: &Encode) -> Result<(), RequestError> {
        let is_first = self.ids.is_empty();
        if is_first || !text.is_empty() {
            self.ids.extend(encode(text, is_first)?);
        }
        text.clear();
        Ok(())
    }

    /// The number of tokens and rows.
    pub fn len(&self) -> usize {
        let rows = |picture: &PlannedPicture| picture.runs.iter().map(|(_, run)| run.num_rows).sum::<usize>();
        self.ids.len() + self.pictures.iter().map(rows).sum::<usize>()
    }

    /// The memory that the rows of the pictures will take [bytes].
    pub fn num_row_bytes(&self, rules: Option<&PictureRules>) -> usize {
        let rows: usize = self.len() - self.ids.len();
        rules.map_or(0, |rules| rules.row_bytes().saturating_mul(rows))
    }

    /// The ids of a prompt that may not have pictures.
    ///
    /// # Errors
    /// Names the first picture.
    pub fn text_only(self) -> Result<Vec<u32>, RequestError> {
        match self.pictures.into_iter().next() {
            Some(picture) => Err(RequestError::Picture { field: picture.field, error: PictureError::OnlyText }),
            None => Ok(self.ids),
        }
    }

    /// Puts ids before the prompt, in the place of its first `dropped` ones.
    pub fn insert_before(&mut self, prefix: &[u32], dropped: usize) {
        self.ids.splice(..dropped, prefix.iter().copied());
        for (at, _) in self.pictures.iter_mut().flat_map(|picture| &mut picture.runs) {
            *at = (*at + prefix.len()).saturating_sub(dropped);
        }
    }

    /// The runs of tokens between the rows, each with the index of its first token among the prompt's items.
    pub fn text_runs(&self) -> Vec<(usize, &[u32])> {
        let (mut runs, mut from, mut rows) = (Vec::new(), 0, 0);
        for (at, run) in self.pictures.iter().flat_map(|picture| &picture.runs) {
            runs.push((from + rows, &self.ids[from..*at]));
            (from, rows) = (*at, rows + run.num_rows);
        }
        runs.push((from + rows, &self.ids[from..]));
        runs
    }

    /// The prompt's items, whose rows have no embeddings yet, and its pictures.
    pub fn into_items(self) -> (Items, Vec<PlannedPicture>) {
        let runs: Vec<&(usize, RowRun)> = self.pictures.iter().flat_map(|picture| &picture.runs).collect();
        let Some((first, _)) = runs.first() else { return (Items::text(self.ids), self.pictures) };
        let behind = |(index, (at, run)): (usize, &&(usize, RowRun))| {
            let end = runs.get(index + 1).map_or(self.ids.len(), |(next, _)| *next);
            (run.clone(), self.ids[*at..end].to_vec())
        };
        (Items::with_runs(self.ids[..*first].to_vec(), runs.iter().enumerate().map(behind)), self.pictures)
    }
}

impl From<Vec<u32>> for EncodedPrompt {
    fn from(ids: Vec<u32>) -> Self {
        Self { ids, pictures: Vec::new() }
    }
}

/// The bytes of a picture and what becomes of it. `pixels`: those of the pictures before it, to which its own are added.
fn planned(picture: &Picture, rules: &PictureRules, number: usize, pixels: &mut u64) -> Result<(Arc<[u8]>, PicturePlan), PictureError> {
    if number >= MAX_PICTURES {
        return Err(PictureError::TooMany);
    }
    let file = match &picture.source {
        PictureSource::File(bytes) => bytes.clone(),
        PictureSource::Url(_) => return Err(PictureError::NotFetched),
        PictureSource::Invalid(reason) => return Err(PictureError::Invalid(reason.clone())),
    };
    let header = read_header(&file, &DecodeLimits::default())?;
    *pixels += u64::from(header.width) * u64::from(header.height);
    if *pixels > MAX_PIXELS {
        return Err(PictureError::TooManyPixels);
    }
    let plan = rules.plan((header.width, header.height), number)?;
    Ok((file, plan))
}

#[cfg(test)]
mod tests {
    use super::*;
    use scheduler::Layout;

    #[test]
    fn rows_stand_between_runs_of_text() {
        let run = |num_rows| RowRun { source: [0; 32], embeddings: Arc::default(), num_rows, layout: Layout::Line, is_whole: false };
        let picture = |runs| PlannedPicture { file: Arc::default(), field: "".into(), runs };
        let pictures = vec![picture(vec![(2, run(3)), (2, run(4))]), picture(vec![(5, run(1))])];
        let prompt = EncodedPrompt { ids: vec![1, 2, 3, 4, 5, 6], pictures };
        assert_eq!(prompt.text_runs(), [(0, &[1, 2][..]), (5, &[]), (9, &[3, 4, 5]), (13, &[6])]);
        assert_eq!(EncodedPrompt::from(vec![7]).text_runs(), [(0, &[7][..])]);
    }
}
