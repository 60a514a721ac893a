#[budgeted]
fn sums(cx: &Cx, rows: &[Vec<u64>]) -> Result<u64, Cancelled> {
    let mut sum = 0;
    'rows: for row in rows {
        for &cell in row {
            if cell == 0 {
                continue 'rows;
            }
            if cell == 7 {
                break 'rows;
            }
            sum += cell;
        }
    }
    let found = loop {
        sum -= 1;
        if sum < 3 {
            break sum;
        }
    };
    while more(found) && other(found) {
        sum += 1;
    }
    while let Some(next) = rows.first() {
        sum += next[0];
    }
    Ok(sum)
}
