//! What becomes of a picture: tiles for the encoder, rows and text for the language model.

use std::borrow::Cow;
use std::ops::Range;

use crate::resize::{Filter, Mount, mounted, resize_mounted};
use crate::{Family, PictureSettings, Rgb, resize};

/// What becomes of a picture of one size. Nothing has been computed yet.
#[derive(Clone, Debug, PartialEq)]
pub struct PicturePlan {
    /// What the encoder gets.
    pub tiles: Vec<Tile>,
    /// What the language model gets, in order.
    pub chunks: Vec<PlanChunk>,
    canvases: Vec<Canvas>,
}

/// A part of what the language model gets.
#[derive(Clone, Debug, PartialEq)]
pub enum PlanChunk {
    /// Control tokens of the family and newlines.
    Text(String),
    Rows(RowsChunk),
}

/// Consecutive rows of embeddings.
#[derive(Clone, Debug, PartialEq)]
pub struct RowsChunk {
    /// The tiles from which the rows come.
    pub tiles: Range<usize>,
    pub order: RowOrder,
    pub num_rows: usize,
}

/// The order of a chunk's rows.
#[derive(Clone, Debug, PartialEq)]
pub enum RowOrder {
    /// All rows of the chunk's one tile, as the encoder gives them.
    AsEncoded,
    Picked(Vec<PickedRow>),
}

/// A row of LLaVA 1.6, which leaves out rows of padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PickedRow {
    Encoded {
        /// Index into [`PicturePlan::tiles`].
        tile: u32,
        row: u32,
    },
    /// The row `v.image_newline` of the file.
    Newline,
}

/// One run of the encoder.
#[derive(Clone, Debug, PartialEq)]
pub struct Tile {
    /// Size that the encoder sees [pixels].
    pub width: u32,
    pub height: u32,
    /// Number of squares of pixels that become a row each.
    pub grid_width: u32,
    pub grid_height: u32,
    /// Number of rows that the encoder gives.
    pub rows: usize,
    canvas: usize,
    left: u32,
    top: u32,
}

/// A picture that tiles are cut from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Canvas {
    /// The canvas that it is made of. `None`: of the client's picture.
    pub from: Option<usize>,
    pub steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    Resize {
        width: u32,
        height: u32,
        filter: Filter,
    },
    /// Put on a canvas of one colour.
    Mount(Mount),
    ResizeMounted {
        mount: Mount,
        width: u32,
        height: u32,
        filter: Filter,
    },
}

impl PicturePlan {
    pub(crate) fn new() -> Self {
        Self { tiles: Vec::new(), chunks: Vec::new(), canvases: Vec::new() }
    }

    /// Number of rows of embeddings in all chunks.
    pub fn num_rows(&self) -> usize {
        let rows = |chunk: &PlanChunk| match chunk {
            PlanChunk::Text(_) => 0,
            PlanChunk::Rows(rows) => rows.num_rows,
        };
        self.chunks.iter().map(rows).sum()
    }

    /// The pixels of all tiles, in order.
    ///
    /// # Panics
    /// If the picture has another size than the plan is for.
    pub fn prepare(&self, picture: &Rgb) -> Vec<Rgb> {
        let mut canvases: Vec<Cow<'_, Rgb>> = Vec::with_capacity(self.canvases.len());
        for canvas in &self.canvases {
            let made = match canvas.from {
                Some(from) => Cow::Owned(canvas.made(&canvases[from]).into_owned()),
                None => canvas.made(picture),
            };
            canvases.push(made);
        }
        self.tiles.iter().map(|tile| tile.cut(&canvases[tile.canvas])).collect()
    }

    pub(crate) fn canvas(&mut self, from: Option<usize>, steps: Vec<Step>) -> usize {
        self.canvases.push(Canvas { from, steps });
        self.canvases.len() - 1
    }

    /// Adds text after the chunks so far.
    pub(crate) fn text(&mut self, text: &str) {
        match self.chunks.last_mut() {
            _ if text.is_empty() => {}
            Some(PlanChunk::Text(last)) => last.push_str(text),
            _ => self.chunks.push(PlanChunk::Text(text.to_owned())),
        }
    }

    /// Adds a tile without its rows. Returns its index.
    pub(crate) fn tile(&mut self, settings: &PictureSettings, place: Place) -> usize {
        let Place { canvas, left, top, width, height } = place;
        let (grid_width, grid_height) = (width / settings.cell(), height / settings.cell());
        let cells = grid_width as usize * grid_height as usize;
        let rows = match settings.family {
            Family::MiniCpmV | Family::Gemma3n => settings.query_rows as usize,
            // a row that says "break" after each row of cells but the last
            Family::Pixtral => cells + (grid_height as usize).saturating_sub(1),
            _ => cells,
        };
        self.tiles.push(Tile { width, height, grid_width, grid_height, rows, canvas, left, top });
        self.tiles.len() - 1
    }

    /// Adds a tile and all its rows.
    pub(crate) fn rows(&mut self, settings: &PictureSettings, place: Place) {
        let tile = self.tile(settings, place);
        let num_rows = self.tiles[tile].rows;
        self.chunks.push(PlanChunk::Rows(RowsChunk { tiles: tile..tile + 1, order: RowOrder::AsEncoded, num_rows }));
    }

    /// Adds rows of several tiles.
    pub(crate) fn picked(&mut self, tiles: Range<usize>, rows: Vec<PickedRow>) {
        let num_rows = rows.len();
        self.chunks.push(PlanChunk::Rows(RowsChunk { tiles, order: RowOrder::Picked(rows), num_rows }));
    }
}

/// Where a tile lies on a canvas.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub canvas: usize,
    pub left: u32,
    pub top: u32,
    pub width: u32,
    pub height: u32,
}

impl Place {
    /// A whole canvas.
    pub fn whole(canvas: usize, (width, height): (u32, u32)) -> Self {
        Self { canvas, left: 0, top: 0, width, height }
    }
}

impl Canvas {
    fn made<'a>(&self, source: &'a Rgb) -> Cow<'a, Rgb> {
        self.steps.iter().fold(Cow::Borrowed(source), |picture, step| step.apply(picture))
    }
}

impl Tile {
    fn cut(&self, canvas: &Rgb) -> Rgb {
        canvas.crop(self.left, self.top, self.width, self.height)
    }
}

impl Step {
    pub fn resize((width, height): (u32, u32), filter: Filter) -> Self {
        Self::Resize { width, height, filter }
    }

    fn apply<'a>(&self, picture: Cow<'a, Rgb>) -> Cow<'a, Rgb> {
        match *self {
            Self::Resize { width, height, .. } if (width, height) == (picture.width, picture.height) => picture,
            Self::Resize { width, height, filter } => Cow::Owned(resize(&picture, width, height, filter)),
            Self::Mount(ref mount) => mounted(picture, mount),
            Self::ResizeMounted { ref mount, width, height, filter } => Cow::Owned(resize_mounted(&picture, mount, width, height, filter)),
        }
    }
}
