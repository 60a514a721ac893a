//! The line of boot options, as words: a bad one is left out, and the others count.

use abi::BOOT_LINE_BYTES_MAX;

/// The words of a line; a word that is not UTF-8 is an error that carries its bytes.
pub fn words(line: &[u8]) -> impl Iterator<Item = Result<&str, &[u8]>> {
    let words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    words.map(|word| core::str::from_utf8(word).map_err(|_| word))
}

/// The part of a line that is read, which ends with a whole word, and how many bytes are left out. A caller that cuts a longer line must
/// leave at least one byte too many.
pub fn fit(line: &[u8]) -> (&[u8], usize) {
    if line.len() <= BOOT_LINE_BYTES_MAX {
        return (line, 0);
    }
    // A word across the limit would become another word if it were cut.
    let end = line[..=BOOT_LINE_BYTES_MAX].iter().rposition(u8::is_ascii_whitespace).unwrap_or(0);
    (&line[..end], line.len() - end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    #[test]
    fn a_word_that_is_no_text_leaves_the_others() {
        let found: Vec<_> = words(b"  pit \xffx\tpolicy=wfq \xc3\n").collect();
        assert_eq!(found, [Ok("pit"), Err(&b"\xffx"[..]), Ok("policy=wfq"), Err(&b"\xc3"[..])]);
        assert_eq!(words(b" ").count(), 0);
    }

    #[test]
    fn a_long_line_ends_with_a_whole_word() {
        let mut line = vec![b'a'; BOOT_LINE_BYTES_MAX];
        assert_eq!(fit(&line), (&line[..], 0));
        // The last word that fits ends where the line may end.
        line.push(b' ');
        line.extend(b"more");
        assert_eq!(fit(&line), (&line[..BOOT_LINE_BYTES_MAX], 5));
        line[700] = b' ';
        line[BOOT_LINE_BYTES_MAX] = b'a';
        assert_eq!(fit(&line), (&line[..700], line.len() - 700));
        assert_eq!(fit(&vec![b'a'; 5000]), (&b""[..], 5000));
    }
}
