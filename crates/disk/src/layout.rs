//! Where the bytes of a request will lie in its buffer. Pure arithmetic on extents and alignments.

use std::ops::Range;

use crate::{Extent, FileId};

/// Every span starts at a multiple of this in the buffer, so that arithmetic on a span that starts at its first byte
/// finds a whole cache line.
const SPAN_ALIGN_BYTES: usize = 64;

/// An aligned run of one file that is read as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub file: FileId,
    /// First byte in the file; a multiple of the file's alignment.
    pub offset: u64,
    /// Bytes to ask for; a multiple of the file's alignment, so it may pass the end of the file.
    pub len: usize,
    /// How many of these must come for the extents to be complete.
    pub needed: usize,
    /// First byte in the buffer.
    pub at: usize,
}

/// The spans of a request and where each extent lies in them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Sorted by file and offset; they neither touch nor overlap.
    pub spans: Vec<Span>,
    /// `views[i]` is where the bytes of extent `i` lie in the buffer.
    pub views: Vec<Range<usize>>,
    /// Size the buffer must have.
    pub bytes: usize,
}

/// Extent `index` cannot be laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLarge {
    pub index: usize,
}

/// Lays `extents` out for files whose alignment, in bytes, is `align_bytes(file)`.
///
/// Extents that touch or overlap once they are aligned become one span: experts often lie back to back, and one long
/// read costs less than two short ones that share a block.
pub(crate) fn lay_out(extents: &[Extent], align_bytes: impl Fn(FileId) -> usize) -> Result<Layout, TooLarge> {
    let mut order: Vec<usize> = (0..extents.len()).filter(|&i| extents[i].len > 0).collect();
    order.sort_by_key(|&i| (extents[i].file, extents[i].offset));

    let mut spans: Vec<Span> = Vec::with_capacity(order.len());
    let mut span_of = vec![None; extents.len()];
    for i in order {
        let extent = extents[i];
        let aligned = align(extent, align_bytes(extent.file).max(1)).ok_or(TooLarge { index: i })?;
        match spans.last_mut() {
            Some(last) if last.file == extent.file && aligned.offset <= last.offset + last.len as u64 => {
                merge(last, &aligned).ok_or(TooLarge { index: i })?;
            }
            _ => spans.push(aligned),
        }
        span_of[i] = Some(spans.len() - 1);
    }

    let mut bytes = 0usize;
    for (n, span) in spans.iter_mut().enumerate() {
        span.at = bytes;
        let padding = align_bytes(span.file).max(SPAN_ALIGN_BYTES);
        let end = bytes.checked_add(span.len).and_then(|end| end.checked_next_multiple_of(padding));
        let index = || span_of.iter().position(|&s| s == Some(n)).unwrap_or(0);
        bytes = end.ok_or_else(|| TooLarge { index: index() })?;
    }

    let view = |i: usize| match span_of[i].and_then(|s: usize| spans.get(s)) {
        // Both differences are below the span's length, which is a `usize`.
        Some(span) => {
            let start = span.at + (extents[i].offset - span.offset) as usize;
            start..start + extents[i].len as usize
        }
        None => 0..0,
    };
    Ok(Layout { views: (0..extents.len()).map(view).collect(), spans, bytes })
}

/// The smallest aligned span around an extent, not placed yet.
fn align(extent: Extent, align_bytes: usize) -> Option<Span> {
    let step = align_bytes as u64;
    let offset = extent.offset / step * step;
    let end = extent.offset.checked_add(extent.len)?;
    let len = usize::try_from(end.checked_next_multiple_of(step)? - offset).ok()?;
    let needed = usize::try_from(end - offset).ok()?;
    Some(Span { file: extent.file, offset, len, needed, at: 0 })
}

/// Grows `span` over `next`, which starts inside it or at its end.
fn merge(span: &mut Span, next: &Span) -> Option<()> {
    let shift = usize::try_from(next.offset - span.offset).ok()?;
    span.len = span.len.max(shift.checked_add(next.len)?);
    span.needed = span.needed.max(shift.checked_add(next.needed)?);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `extents`: (file, offset, len); `spans`: (file, offset, len, needed, at); `views`: (start, len).
    type SpanRow = (u32, u64, usize, usize, usize);

    fn check(
        align: usize,
        extents: &[(u32, u64, u64)],
        spans: &[SpanRow],
        views: &[(usize, usize)],
        bytes: usize,
    ) {
        let extents: Vec<Extent> =
            extents.iter().map(|&(file, offset, len)| Extent { file: FileId(file), offset, len }).collect();
        let layout = lay_out(&extents, |_| align).expect("fits");
        let got: Vec<SpanRow> =
            layout.spans.iter().map(|s| (s.file.0, s.offset, s.len, s.needed, s.at)).collect();
        assert_eq!(got, spans);
        let got: Vec<(usize, usize)> = layout.views.iter().map(|v| (v.start, v.len())).collect();
        assert_eq!(got, views);
        assert_eq!(layout.bytes, bytes);
    }

    #[test]
    fn aligns_merges_and_places() {
        check(512, &[], &[], &[], 0);
        check(512, &[(0, 777, 0)], &[], &[(0, 0)], 0);
        check(512, &[(0, 0, 512)], &[(0, 0, 512, 512, 0)], &[(0, 512)], 512);
        check(512, &[(0, 511, 2)], &[(0, 0, 1024, 513, 0)], &[(511, 2)], 1024);
        // Apart, and out of order.
        check(
            512,
            &[(0, 4000, 10), (0, 5, 10)],
            &[(0, 0, 512, 15, 0), (0, 3584, 512, 426, 512)],
            &[(512 + 416, 10), (5, 10)],
            1024,
        );
        // They touch only once aligned.
        check(512, &[(0, 0, 100), (0, 600, 10)], &[(0, 0, 1024, 610, 0)], &[(0, 100), (600, 10)], 1024);
        // One inside the other, and the same twice.
        check(
            1,
            &[(0, 10, 90), (0, 20, 5), (0, 10, 90)],
            &[(0, 10, 90, 90, 0)],
            &[(0, 90), (10, 5), (0, 90)],
            128,
        );
        // Back to back without alignment; a gap of one byte parts.
        check(1, &[(0, 0, 7), (0, 7, 3)], &[(0, 0, 10, 10, 0)], &[(0, 7), (7, 3)], 64);
        check(1, &[(0, 0, 7), (0, 8, 3)], &[(0, 0, 7, 7, 0), (0, 8, 3, 3, 64)], &[(0, 7), (64, 3)], 128);
        // The same place in two files.
        check(
            4096,
            &[(1, 1, 1), (0, 1, 1)],
            &[(0, 0, 4096, 2, 0), (1, 0, 4096, 2, 4096)],
            &[(4097, 1), (1, 1)],
            8192,
        );
    }

    #[test]
    fn refuses_what_does_not_fit_in_the_numbers() {
        for (offset, len) in [(u64::MAX, 1), (1, u64::MAX), (u64::MAX - 10, 5), (0, u64::MAX)] {
            let extents =
                [Extent { file: FileId(0), offset: 0, len: 1 }, Extent { file: FileId(0), offset, len }];
            assert_eq!(lay_out(&extents, |_| 4096), Err(TooLarge { index: 1 }), "{offset}+{len}");
        }
    }
}
