//! A prompt as items. An item is a token, or a row of embeddings that something other than text became, for example a part of a picture.
//!
//! An item has a content (what the prefix cache compares), an input (what the engine reads) and a position (what the engine rotates by).
//! Tokens lie in one array. Rows stand in runs between them, so a prompt without rows takes four bytes per item.

use std::ops::Range;
use std::sync::Arc;

/// Consecutive rows of embeddings from one source.
#[derive(Clone, Debug, PartialEq)]
pub struct RowRun {
    /// Identifies everything that the rows depend on, for example the SHA-256 of a picture's pixels and the encoder's settings. Runs with
    /// the same source have the same rows.
    pub source: [u8; 32],
    /// [num_rows, hidden] as in [`engine::Batch::embeddings`]
    pub embeddings: Arc<[f32]>,
    pub num_rows: usize,
    pub layout: Layout,
    /// Whether the rows see each other. Then they run in one step, and no cached prefix ends between them.
    pub is_whole: bool,
}

/// The positions of a run's rows, if the first row has position p.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// p, p + 1, p + 2, … as for tokens.
    Line,
    /// (p, p + row, p + column) in raster order, for models that rotate by three positions. The item after the grid has position p +
    /// max(height, width).
    Grid { height: u32, width: u32 },
}

/// The identity of a run in the prefix cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RunContent {
    source: [u8; 32],
    num_rows: usize,
    layout: Layout,
    is_whole: bool,
}

impl RowRun {
    pub fn content(&self) -> RunContent {
        let Self { source, num_rows, layout, is_whole, .. } = *self;
        RunContent { source, num_rows, layout, is_whole }
    }

    /// Number of floats per row.
    pub fn width(&self) -> usize {
        self.embeddings.len() / self.num_rows.max(1)
    }

    /// Number of positions that the run takes.
    fn extent(&self) -> u32 {
        match self.layout {
            Layout::Line => self.num_rows as u32,
            Layout::Grid { height, width } => height.max(width),
        }
    }

    fn check(&self) -> Result<(), String> {
        let Self { num_rows, layout, .. } = *self;
        if num_rows == 0 || self.embeddings.is_empty() || self.width() * num_rows != self.embeddings.len() {
            return Err(format!("{} floats are not {num_rows} rows of embeddings", self.embeddings.len()));
        }
        match layout {
            Layout::Grid { height, width } if height as usize * width as usize != num_rows => {
                Err(format!("a grid of {height} × {width} has {num_rows} rows of embeddings"))
            }
            _ => Ok(()),
        }
    }
}

/// A run at its place in a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacedRun {
    pub run: RowRun,
    /// Index of the first row among the items.
    pub start: usize,
    /// Position of the first row.
    pub position: u32,
    /// Number of tokens before the run.
    num_tokens: usize,
}

impl PlacedRun {
    fn end(&self) -> usize {
        self.start + self.run.num_rows
    }
}

/// Consecutive items of one kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Segment<'a> {
    /// Tokens whose positions follow each other.
    Tokens { ids: &'a [u32], position: u32 },
    /// A part of a run.
    Rows { run: &'a PlacedRun, rows: Range<usize> },
    /// A token that was sampled and is not collected yet.
    Pending { position: u32 },
}

/// A prompt's items. Clones share them.
#[derive(Clone, Debug, PartialEq)]
pub struct Items {
    tokens: Arc<[u32]>,     // ids of the tokens, without the rows between them
    runs: Arc<[PlacedRun]>, // in order; empty for a text
    len: usize,
    next_position: u32,
    is_whole: bool,
    /// The most items that must be in one step. 1 for most prompts, which the checks of every step skip by this.
    most_together: usize,
}

impl Items {
    /// The items of a text.
    pub fn text(ids: Vec<u32>) -> Self {
        let len = ids.len();
        Self { tokens: ids.into(), runs: Arc::default(), len, next_position: len as u32, is_whole: false, most_together: 1 }
    }

    /// A text followed by runs, each with the text behind it.
    pub fn with_runs(ids: Vec<u32>, runs: impl IntoIterator<Item = (RowRun, Vec<u32>)>) -> Self {
        let (mut tokens, mut placed) = (ids, Vec::new());
        let (mut len, mut next_position) = (tokens.len(), tokens.len() as u32);
        for (run, ids) in runs {
            let (start, position, num_tokens) = (len, next_position, tokens.len());
            len += run.num_rows + ids.len();
            next_position += run.extent() + ids.len() as u32;
            tokens.extend(ids);
            placed.push(PlacedRun { run, start, position, num_tokens });
        }
        let whole = placed.iter().filter(|placed| placed.run.is_whole);
        let most_together = whole.map(|placed| placed.run.num_rows).max().unwrap_or(1);
        Self { tokens: tokens.into(), runs: placed.into(), len, next_position, is_whole: false, most_together }
    }

    /// Replaces the runs by others of the same form, which have their embeddings.
    ///
    /// # Panics
    /// If a run has another number of rows or another layout.
    #[must_use]
    pub fn with_rows(mut self, runs: impl IntoIterator<Item = RowRun>) -> Self {
        let mut runs = runs.into_iter();
        let fill = |placed: &PlacedRun| {
            let run = runs.next().expect("a run for each place");
            assert_eq!((run.num_rows, run.layout), (placed.run.num_rows, placed.run.layout), "the form of a run is known before its rows");
            PlacedRun { run, ..placed.clone() }
        };
        self.runs = self.runs.iter().map(fill).collect();
        self
    }

    /// Makes all items see each other, so that they run in one step.
    #[must_use]
    pub fn whole(self) -> Self {
        Self { is_whole: true, most_together: self.len.max(1), ..self }
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether all items see each other.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// The ids of all tokens. Rows have none.
    pub fn tokens(&self) -> &Arc<[u32]> {
        &self.tokens
    }

    /// Whether every item is a token.
    pub fn is_text(&self) -> bool {
        self.runs.is_empty()
    }

    /// The position of the item after the last one.
    pub fn next_position(&self) -> u32 {
        self.next_position
    }

    /// The items in `range`, in order.
    pub fn segments(&self, range: Range<usize>) -> impl Iterator<Item = Segment<'_>> {
        let (mut at, end) = (range.start, range.end.min(self.len));
        let mut next = self.runs.partition_point(|run| run.end() <= at);
        std::iter::from_fn(move || {
            let (start, run) = (at, self.runs.get(next));
            if start >= end {
                return None;
            }
            match run {
                Some(run) if run.start <= start => {
                    at = end.min(run.end());
                    next += 1;
                    Some(Segment::Rows { run, rows: start - run.start..at - run.start })
                }
                _ => {
                    at = run.map_or(end, |run| run.start.min(end));
                    // The token's distance to the end of the run before it is the same among the ids and among the positions.
                    let before = next.checked_sub(1).map(|last| &self.runs[last]);
                    let (first, position, from) =
                        before.map_or((0, 0, 0), |run| (run.num_tokens, run.position + run.run.extent(), run.end()));
                    let first = first + start - from;
                    Some(Segment::Tokens { ids: &self.tokens[first..first + at - start], position: position + (start - from) as u32 })
                }
            }
        })
    }

    /// The number of items from `start` on that a step must have if it has the first of them: the length of the whole run that begins
    /// there, or 1.
    pub fn num_together(&self, start: usize) -> usize {
        match self.whole_run(start + 1) {
            Some(run) => run.end - start,
            None => 1,
        }
    }

    /// The last index up to `index` at which a step or a cached prefix may end: `index` itself, or the start of the run that `index` would
    /// cut.
    pub fn boundary_before(&self, index: usize) -> usize {
        self.whole_run(index).map_or(index, |run| run.start)
    }

    /// The items that see each other and that `index` would cut.
    fn whole_run(&self, index: usize) -> Option<Range<usize>> {
        if self.most_together == 1 {
            return None;
        }
        let cuts = |run: &Range<usize>| run.start < index && index < run.end;
        if self.is_whole {
            return Some(0..self.len).filter(cuts);
        }
        let run = self.runs.get(self.runs.partition_point(|run| run.end() <= index))?;
        Some(run.start..run.end()).filter(|range| run.run.is_whole && cuts(range))
    }

    /// The most items that must be in one step.
    pub fn most_together(&self) -> usize {
        self.most_together
    }

    /// Checks that each run has the rows that it claims.
    ///
    /// # Errors
    /// Checks the runs. Fails with the fault of the first wrong one.
    pub fn check(&self) -> Result<(), String> {
        self.runs.iter().try_for_each(|run| run.run.check())
    }
}

impl Default for Items {
    fn default() -> Self {
        Self::text(Vec::new())
    }
}

impl From<Vec<u32>> for Items {
    fn from(ids: Vec<u32>) -> Self {
        Self::text(ids)
    }
}

#[cfg(test)]
#[path = "items_tests.rs"]
mod tests;
