//! Finds the callers of an interrupted frame by the call frame information (`.eh_frame`) that every
//! x86-64 object carries, inside a signal handler.
//!
//! It must not allocate, lock, make a system call, change a frame, or read any word outside the stack that it was
//! given: everything else it reads is the read-only `.eh_frame` of objects listed beforehand.
//!
//! ```text
//!   pc -> object (table of dl_iterate_phdr) -> .eh_frame_hdr, sorted:  [start of function | its FDE] ...
//!                                                                                            |
//!   CIE: instructions common to an object  +  FDE: instructions of the function up to pc  <--+
//!     = rules:  CFA = reg + n,  rip at CFA-8,  rbx at CFA-40, ...   -> registers of the caller
//! ```
//!
//! Numbered invariants:
//!
//! 1. Every step raises the stack pointer, so a walk ends.
//! 2. Anything that is not understood ends the walk (`Option::None`); nothing is guessed.

/// DWARF numbers: 0 rax, 1 rdx, 2 rcx, 3 rbx, 4 rsi, 5 rdi, 6 rbp, 7 rsp, 8..15, 16 the return address.
pub(crate) const REGS: usize = 17;
/// The stack pointer's number.
pub(crate) const RSP: usize = 7;
/// The program counter's number.
pub(crate) const RIP: usize = 16;

/// Registers of a frame.
#[derive(Clone, Copy)]
pub(crate) struct Frame {
    /// By DWARF number.
    pub(crate) regs: [usize; REGS],
    /// The program counter is that of an interrupted instruction, not a return address.
    pub(crate) exact: bool,
}

/// The stack a walk may read: from its lowest address to one past its highest.
#[derive(Clone, Copy)]
pub(crate) struct Readable {
    /// Lowest readable address.
    pub(crate) low: usize,
    /// One past the highest.
    pub(crate) high: usize,
}

impl Readable {
    /// The word at `at`, if it is aligned and inside.
    pub(crate) fn word(self, at: usize) -> Option<usize> {
        if at < self.low || at > self.high - 8 || !at.is_multiple_of(8) {
            return None;
        }
        // SAFETY: inside the stack that the maker of `self` guarantees to be readable.
        Some(unsafe { (at as *const usize).read() })
    }
}

#[derive(Clone, Copy)]
enum Rule {
    Same,
    Undefined,
    At(i64),
    Is(i64),
    AtExpr(usize, usize),
    IsExpr(usize, usize),
    Reg(usize),
}

#[derive(Clone, Copy)]
enum Cfa {
    Reg(usize, i64),
    Expr(usize, usize),
}

#[derive(Clone, Copy)]
struct Rules {
    cfa: Cfa,
    regs: [Rule; REGS],
}

/// A reader of unwind tables, which are mapped as long as their object is.
#[derive(Clone, Copy)]
struct Bytes {
    at: usize,
    end: usize,
}

impl Bytes {
    fn take<T: Copy>(&mut self) -> Option<T> {
        let at = self.at;
        let next = at.checked_add(size_of::<T>())?;
        if next > self.end {
            return None;
        }
        self.at = next;
        // SAFETY: inside an entry of a loaded object's unwind table; T is a plain integer.
        Some(unsafe { (at as *const T).read_unaligned() })
    }

    fn uleb(&mut self) -> Option<u64> {
        let (mut value, mut shift) = (0_u64, 0);
        loop {
            let byte = self.take::<u8>()?;
            value |= u64::from(byte & 0x7f).checked_shl(shift)?;
            shift += 7;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
    }

    fn sleb(&mut self) -> Option<i64> {
        let (mut value, mut shift) = (0_i64, 0);
        loop {
            let byte = self.take::<u8>()?;
            value |= i64::from(byte & 0x7f).checked_shl(shift)?;
            shift += 7;
            if byte & 0x80 == 0 {
                if byte & 0x40 != 0 && shift < 64 {
                    value |= -1 << shift;
                }
                return Some(value);
            }
        }
    }

    fn reg(&mut self) -> Option<usize> {
        usize::try_from(self.uleb()?).ok()
    }

    fn block(&mut self) -> Option<(usize, usize)> {
        let len = usize::try_from(self.uleb()?).ok()?;
        let at = self.at;
        self.at = at.checked_add(len)?;
        (self.at <= self.end).then_some((at, self.at))
    }

    /// A pointer in the encodings that occur in `.eh_frame`.
    fn pointer(&mut self, encoding: u8) -> Option<usize> {
        let base = if encoding & 0x70 == 0x10 { self.at } else { 0 };
        let value = match encoding & 0x0f {
            0x00 | 0x04 | 0x0c => self.take::<u64>()? as usize,
            0x03 => self.take::<u32>()? as usize,
            0x0b => self.take::<i32>()? as usize,
            0x02 => self.take::<u16>()? as usize,
            0x0a => self.take::<i16>()? as usize,
            _ => return None,
        };
        Some(base.wrapping_add(value))
    }
}

/// What the tables say about one function.
#[derive(Clone, Copy)]
pub(crate) struct Function {
    /// Its first address.
    pub(crate) start: usize,
    /// One past its last.
    pub(crate) end: usize,
    signal: bool,
    code_align: u64,
    data_align: i64,
    common: Bytes,
    own: Bytes,
}

impl Function {
    /// The function around `pc`, in an object whose `.eh_frame_hdr` is at `hdr`.
    pub(crate) fn find(hdr: usize, pc: usize) -> Option<Function> {
        let mut r = Bytes { at: hdr, end: hdr.checked_add(12)? };
        // Version 1, any 4-byte pointer, count as udata4, table as datarel sdata4: what all linkers write.
        let [version, _, count_enc, table_enc] = r.take::<[u8; 4]>()?;
        if (version, count_enc, table_enc) != (1, 0x03, 0x3b) {
            return None;
        }
        r.take::<i32>()?;
        let count = r.take::<u32>()? as usize;
        let entry = |i: usize| {
            let mut e = Bytes { at: r.at + i * 8, end: r.at + i * 8 + 8 };
            Some((
                hdr.wrapping_add_signed(e.take::<i32>()? as isize),
                hdr.wrapping_add_signed(e.take::<i32>()? as isize),
            ))
        };
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = (low + high) / 2;
            if entry(middle)?.0 <= pc {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let found = Function::parse(entry(low.checked_sub(1)?)?.1)?;
        (found.start <= pc && pc < found.end).then_some(found)
    }

    fn parse(fde: usize) -> Option<Function> {
        let mut own = entry_at(fde)?;
        let back = own.at;
        let cie = back.checked_sub(own.take::<u32>()? as usize)?;
        let mut common = entry_at(cie)?;
        common.take::<u32>()?;
        let version = common.take::<u8>()?;
        let (mut names, mut n) = ([0_u8; 8], 0);
        loop {
            match common.take::<u8>()? {
                0 => break,
                c => *names.get_mut(n)? = c,
            }
            n += 1;
        }
        let (code_align, data_align) = (common.uleb()?, common.sleb()?);
        let ra = if version == 1 { u64::from(common.take::<u8>()?) } else { common.uleb()? };
        let (mut signal, mut encoding, mut after) = (false, 0_u8, None);
        for name in &names[..n] {
            match name {
                b'z' => after = Some(common.block()?),
                b'R' | b'L' | b'P' => {
                    let (at, end) = after?;
                    let mut aug = Bytes { at, end };
                    let e = aug.take::<u8>()?;
                    match name {
                        b'R' => encoding = e,
                        b'P' => drop(aug.pointer(e)?),
                        _ => {}
                    }
                    after = Some((aug.at, end));
                }
                b'S' => signal = true,
                _ => return None,
            }
        }
        let start = own.pointer(encoding)?;
        let end = start.checked_add(own.pointer(encoding & 0x0f)?)?;
        if after.is_some() {
            own.block()?;
        }
        (ra == RIP as u64).then_some(Function { start, end, signal, code_align, data_align, common, own })
    }

    /// The rules that hold at `pc`.
    fn rules(&self, pc: usize) -> Option<Rules> {
        let mut rules = Rules { cfa: Cfa::Reg(RSP, 8), regs: [Rule::Same; REGS] };
        self.run(self.common, usize::MAX, &mut rules, None)?;
        let initial = rules;
        self.run(self.own, pc, &mut rules, Some(&initial))?;
        Some(rules)
    }

    fn run(&self, mut r: Bytes, pc: usize, rules: &mut Rules, initial: Option<&Rules>) -> Option<()> {
        let mut loc = self.start;
        let (mut saved, mut depth) = ([*rules; 4], 0);
        while r.at < r.end {
            let op = r.take::<u8>()?;
            let low = usize::from(op & 0x3f);
            let step = match op {
                0x40..=0x7f => Some(low as u64),
                0x02 => Some(u64::from(r.take::<u8>()?)),
                0x03 => Some(u64::from(r.take::<u16>()?)),
                0x04 => Some(u64::from(r.take::<u32>()?)),
                _ => None,
            };
            if let Some(step) = step {
                loc = loc.checked_add((step * self.code_align) as usize)?;
                if loc > pc {
                    return Some(());
                }
                continue;
            }
            match op {
                0x80..=0xbf => {
                    *rules.regs.get_mut(low)? = Rule::At((r.uleb()? as i64).checked_mul(self.data_align)?)
                }
                0xc0..=0xff => *rules.regs.get_mut(low)? = *initial?.regs.get(low)?,
                0x0a => {
                    *saved.get_mut(depth)? = *rules;
                    depth += 1;
                }
                0x0b => {
                    depth = depth.checked_sub(1)?;
                    *rules = saved[depth];
                }
                0x0c => rules.cfa = Cfa::Reg(r.reg()?, r.uleb()? as i64),
                0x12 => rules.cfa = Cfa::Reg(r.reg()?, r.sleb()?.checked_mul(self.data_align)?),
                0x0d..=0x0f | 0x13 => rules.cfa = self.redefine(op, &mut r, rules.cfa)?,
                _ => self.other(op, &mut r, rules, initial)?,
            }
        }
        Some(())
    }

    fn redefine(&self, op: u8, r: &mut Bytes, cfa: Cfa) -> Option<Cfa> {
        Some(match (op, cfa) {
            (0x0d, Cfa::Reg(_, n)) => Cfa::Reg(r.reg()?, n),
            (0x0e, Cfa::Reg(reg, _)) => Cfa::Reg(reg, r.uleb()? as i64),
            (0x13, Cfa::Reg(reg, _)) => Cfa::Reg(reg, r.sleb()?.checked_mul(self.data_align)?),
            (0x0f, _) => {
                let (at, end) = r.block()?;
                Cfa::Expr(at, end)
            }
            _ => return None,
        })
    }

    /// Instructions about one register, and those without effect here.
    fn other(&self, op: u8, r: &mut Bytes, rules: &mut Rules, initial: Option<&Rules>) -> Option<()> {
        match op {
            0x00 => return Some(()),
            0x2e => return r.uleb().map(drop),
            _ => {}
        }
        let reg = r.reg()?;
        let rule = match op {
            0x05 => Rule::At((r.uleb()? as i64).checked_mul(self.data_align)?),
            0x06 => *initial?.regs.get(reg)?,
            0x07 => Rule::Undefined,
            0x08 => Rule::Same,
            0x09 => Rule::Reg(r.reg()?),
            0x10 => r.block().map(|(at, end)| Rule::AtExpr(at, end))?,
            0x11 => Rule::At(r.sleb()?.checked_mul(self.data_align)?),
            0x14 => Rule::Is((r.uleb()? as i64).checked_mul(self.data_align)?),
            0x15 => Rule::Is(r.sleb()?.checked_mul(self.data_align)?),
            0x16 => r.block().map(|(at, end)| Rule::IsExpr(at, end))?,
            _ => return None,
        };
        // Vector registers may have rules too; they are not needed.
        if reg < REGS {
            rules.regs[reg] = rule;
        }
        Some(())
    }

    /// The caller of `frame`, which is in this function.
    pub(crate) fn caller(&self, frame: &Frame, stack: Readable) -> Option<Frame> {
        let pc = if frame.exact { frame.regs[RIP] } else { frame.regs[RIP] - 1 };
        let rules = self.rules(pc)?;
        let cfa = match rules.cfa {
            Cfa::Reg(reg, n) => frame.regs.get(reg)?.wrapping_add_signed(n as isize),
            Cfa::Expr(at, end) => evaluate(Bytes { at, end }, frame, stack, None)?,
        };
        let mut next = Frame { exact: self.signal, ..*frame };
        next.regs[RSP] = cfa;
        for (i, rule) in rules.regs.iter().enumerate() {
            next.regs[i] = match *rule {
                Rule::Same => continue,
                Rule::Undefined if i == RIP => return None,
                Rule::Undefined => 0,
                Rule::At(n) => stack.word(cfa.wrapping_add_signed(n as isize))?,
                Rule::Is(n) => cfa.wrapping_add_signed(n as isize),
                Rule::AtExpr(at, end) => stack.word(evaluate(Bytes { at, end }, frame, stack, Some(cfa))?)?,
                Rule::IsExpr(at, end) => evaluate(Bytes { at, end }, frame, stack, Some(cfa))?,
                Rule::Reg(reg) => *frame.regs.get(reg)?,
            };
        }
        (next.regs[RSP] > frame.regs[RSP] && next.regs[RIP] > 4096).then_some(next)
    }
}

/// The body of the entry at `at`: after its length.
fn entry_at(at: usize) -> Option<Bytes> {
    let mut head = Bytes { at, end: at.checked_add(4)? };
    let len = head.take::<u32>()?;
    (len != 0 && len != u32::MAX).then_some(Bytes { at: head.at, end: head.at + len as usize })
}

/// Evaluates a DWARF expression: the operations that compilers and `ld` use in `.eh_frame`.
fn evaluate(mut r: Bytes, frame: &Frame, stack: Readable, first: Option<usize>) -> Option<usize> {
    let (mut values, mut n) = ([0_usize; 16], 0_usize);
    if let Some(first) = first {
        (values[0], n) = (first, 1);
    }
    while r.at < r.end {
        let op = r.take::<u8>()?;
        let push = match op {
            0x08 => Some(usize::from(r.take::<u8>()?)),
            0x09 => Some(r.take::<i8>()? as usize),
            0x0a => Some(usize::from(r.take::<u16>()?)),
            0x0b => Some(r.take::<i16>()? as usize),
            0x10 => Some(r.uleb()? as usize),
            0x11 => Some(r.sleb()? as usize),
            0x12 => Some(*values.get(n.checked_sub(1)?)?),
            0x30..=0x4f => Some(usize::from(op - 0x30)),
            0x70..=0x8f => {
                let reg = *frame.regs.get(usize::from(op - 0x70))?;
                Some(reg.wrapping_add_signed(r.sleb()? as isize))
            }
            _ => None,
        };
        if let Some(push) = push {
            *values.get_mut(n)? = push;
            n += 1;
            continue;
        }
        let top = *values.get(n.checked_sub(1)?)?;
        match op {
            0x06 => values[n - 1] = stack.word(top)?,
            0x13 => n -= 1,
            0x23 => values[n - 1] = top.wrapping_add(r.uleb()? as usize),
            0x1a | 0x1c | 0x22 | 0x24 | 0x2a => {
                n -= 1;
                let below = *values.get(n.checked_sub(1)?)?;
                values[n - 1] = match op {
                    0x1a => below & top,
                    0x1c => below.wrapping_sub(top),
                    0x22 => below.wrapping_add(top),
                    0x24 => below.checked_shl(u32::try_from(top).ok()?)?,
                    _ => usize::from(below as isize >= top as isize),
                };
            }
            _ => return None,
        }
    }
    values.get(n.checked_sub(1)?).copied()
}
