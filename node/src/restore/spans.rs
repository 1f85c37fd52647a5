//! Which blocks hold a range of a file. Pure.

use thaw_proto::data::File;
use thaw_snapshot::format::ChunkTable;

/// A part of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The block that holds it; none: all zero.
    pub block: Option<u32>,
    /// First byte in the decoded block.
    pub skip: u64,
    /// Bytes.
    pub len: u64,
}

/// The spans of `len` bytes of `file` from `offset`, in order; fewer bytes only at the end of the table's part of the file.
pub fn spans(table: &ChunkTable, file: File, offset: u64, len: u64) -> Vec<Span> {
    let end = offset.saturating_add(len);
    let Some(first) = table.find(file, offset) else {
        return Vec::new();
    };
    let mut spans: Vec<Span> = Vec::new();
    let mut at = offset;
    for chunk in &table.chunks[first..] {
        if chunk.file != file || at >= end {
            break;
        }
        let len = chunk.end().min(end) - at;
        match spans.last_mut() {
            // Neighbouring zero chunks are one answer.
            Some(last) if last.block.is_none() && chunk.block.is_none() => last.len += len,
            _ => spans.push(Span {
                block: chunk.block,
                skip: at - chunk.offset,
                len,
            }),
        }
        at += len;
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use thaw_snapshot::format::Chunk;

    fn table(lens: &[(u64, bool)]) -> ChunkTable {
        let mut table = ChunkTable::default();
        for file in [File::State, File::Pages] {
            let mut offset = 0;
            for (i, (len, zero)) in lens.iter().enumerate() {
                table.chunks.push(Chunk {
                    file,
                    offset,
                    len: *len,
                    block: (!zero).then_some(i as u32),
                });
                offset += len;
            }
        }
        table
    }

    #[test]
    fn a_read_beyond_the_end_is_cut_and_one_after_it_is_empty() {
        let table = table(&[(4096, false), (100, false)]);
        let got = spans(&table, File::State, 4000, 10_000);
        assert_eq!(
            got,
            [
                Span {
                    block: Some(0),
                    skip: 4000,
                    len: 96
                },
                Span {
                    block: Some(1),
                    skip: 0,
                    len: 100
                },
            ]
        );
        assert!(spans(&table, File::State, 4196, 1).is_empty());
        assert!(spans(&table, File::PagesMeta, 0, 1).is_empty());
        assert!(spans(&table, File::Pages, 0, 0).is_empty());
    }

    proptest! {
        #[test]
        fn spans_are_the_bytes_of_the_file(
            lens in proptest::collection::vec((1u64..50, any::<bool>()), 1..20),
            offset in 0u64..600, len in 0u64..600,
        ) {
            let table = table(&lens);
            // Byte i of the file by (block, position in it).
            let file: Vec<Option<(u32, u64)>> = lens.iter().enumerate()
                .flat_map(|(i, (len, zero))| (0..*len).map(move |p| (!zero).then_some((i as u32, p))))
                .collect();
            let got: Vec<Option<(u32, u64)>> = spans(&table, File::Pages, offset, len).iter()
                .flat_map(|s| (0..s.len).map(move |p| s.block.map(|b| (b, s.skip + p))))
                .collect();
            let start = (offset as usize).min(file.len());
            let end = ((offset + len) as usize).min(file.len());
            prop_assert_eq!(&got[..], &file[start..end]);
        }
    }
}
