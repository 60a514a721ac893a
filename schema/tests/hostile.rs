//! Messages from anybody: whatever the bytes, reading ends with a value or an error, and in bounded time. The kernel is built with overflow
//! checks, and so is this.

use schema::messages_capnp as m;

/// Reads everything of a spawn message, as the kernel does: the only one with lists, structures and texts in each other.
fn read(bytes: &[u8]) -> Result<usize, Box<dyn core::error::Error>> {
    let message = schema::decode(bytes)?;
    let p = message.root::<m::process_spawner_spawn_params::Reader<'_>>()?;
    let mut seen = p.get_program()?.to_str()?.len() + p.get_name()?.to_str()?.len() + p.get_args()?.len();
    let grants = p.get_grants()?;
    // Structures without content cost no bytes, but count as words that are visited: the kernel reserves memory for as many.
    let most = bytes.len().max(schema::TRAVERSAL_WORDS_MAX);
    assert!(grants.len() as usize <= most, "{} grants in {} bytes", grants.len(), bytes.len());
    for grant in grants {
        seen += grant.get_name()?.to_str()?.len() + grant.get_cap() as usize % 2;
    }
    let mask = message.root::<m::thread_control_set_affinity_params::Reader<'_>>()?;
    Ok(seen + mask.get_cpus()?.len())
}

fn spawn_message() -> Vec<u8> {
    let mut buffer = [0; 512];
    let length = schema::encode::<m::process_spawner_spawn_params::Owned>(&mut buffer, 48, |mut p| {
        p.set_program("program");
        p.set_name("name");
        p.set_args(b"one\0two\0");
        let mut grants = p.init_grants(3);
        for i in 0..3 {
            grants.reborrow().get(i).set_name("grant");
        }
    })
    .unwrap();
    buffer[..length].to_vec()
}

#[test]
fn k_21_no_message_breaks_the_reader() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let valid = spawn_message();
    assert!(read(&valid).is_ok());
    let mut errors = 0;
    let rounds = std::env::var("ROUNDS").map_or(200_000, |rounds| rounds.parse().unwrap());
    for _ in 0..rounds {
        let mut bytes = valid.clone();
        for _ in 0..1 + random() % 4 {
            let word = random() as usize % (bytes.len() / 8) * 8;
            let value = match random() % 6 {
                // Pointers of each kind, near and far, with the largest numbers that they can say.
                0 => (random() % 4) | ((random() << 2) & 0xffff_fffc) | (random() << 32),
                1 => {
                    (random() % 4) | ((random() % 64) << 2) | ((random() % 8) << 32) | ((random() % 64) << 35)
                }
                2 => 1 | (random() % 64) << 2 | 7 << 32 | (random() & 0x1fff_ffff) << 35,
                3 => u64::MAX - random() % 16,
                4 => 1 << (random() % 64),
                _ => random(),
            };
            bytes[word..word + 8].copy_from_slice(&value.to_le_bytes());
        }
        bytes.truncate(bytes.len() - random() as usize % 9 * (random() as usize % 2));
        errors += u64::from(read(&bytes).is_err());
    }
    assert!(errors > 0 && errors < rounds, "{errors} of {rounds}");
}
