//! [`RowSelection`]: selects the rows of a checkpoint's tensor that become rows of the output's tensor.

/// A selection and an order of rows. A tensor of one dimension has rows of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowSelection {
    /// All rows, in order.
    All,
    /// Adjacent pairs. The checkpoint rotates element i of a head together with element i + rotated / 2, and the output holds such pairs
    /// next to each other. Elements after the rotated ones keep their places.
    Pairs { head: u64, rotated: u64 },
    /// `count` rows of each `group` rows, starting at row `start` of the group.
    Grouped { group: u64, start: u64, count: u64 },
    /// The columns of the tensor, which is stored transposed.
    Columns,
}

impl RowSelection {
    /// The number of rows taken from `rows`. None if the rows do not fit the selection.
    pub fn count(self, rows: u64, cols: u64) -> Option<u64> {
        match self {
            RowSelection::All => Some(rows),
            RowSelection::Pairs { head, rotated } => {
                (head > 0 && rows.is_multiple_of(head) && rotated <= head && rotated.is_multiple_of(2)).then_some(rows)
            }
            RowSelection::Grouped { group, start, count } => {
                (group > 0 && rows.is_multiple_of(group) && start + count <= group).then(|| rows / group * count)
            }
            RowSelection::Columns => Some(cols),
        }
    }

    /// The source row of output row `i`.
    pub fn source(self, i: u64) -> u64 {
        match self {
            RowSelection::All | RowSelection::Columns => i,
            RowSelection::Pairs { head, rotated } => match i % head {
                at if at < rotated => i - at + at % 2 * (rotated / 2) + at / 2,
                _ => i,
            },
            RowSelection::Grouped { group, start, count } => i / count * group + start + i % count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(rows: RowSelection, of: u64) -> Vec<u64> {
        (0..rows.count(of, 1).unwrap()).map(|i| rows.source(i)).collect()
    }

    #[test]
    fn pairs_come_to_stand_beside_each_other_within_their_head() {
        assert_eq!(taken(RowSelection::Pairs { head: 6, rotated: 6 }, 12), [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]);
        assert_eq!(taken(RowSelection::Pairs { head: 6, rotated: 4 }, 6), [0, 2, 1, 3, 4, 5]);
        assert_eq!(RowSelection::Pairs { head: 5, rotated: 4 }.count(12, 1), None);
    }

    #[test]
    fn groups_give_their_part_in_order() {
        assert_eq!(taken(RowSelection::Grouped { group: 4, start: 1, count: 2 }, 8), [1, 2, 5, 6]);
        assert_eq!(RowSelection::Grouped { group: 4, start: 3, count: 2 }.count(8, 1), None);
    }
}
