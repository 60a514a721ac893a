//! Criticality is authority (S-17): with a capability to a context one can create contexts up to the band that the
//! capability allows, and pass on no more.

use crate::contexts::{context, new_context};
use crate::kit::{self, MS, raised, refused};
use crate::machine;
use crate::proof::{Doing, Outcome};
use crate::{ensure, markers};
use rt::abi::{Exception, TransportError, rights};
use rt::{Client, OperationResult as R, ProcessSpawner, SchedulingContext, Spec, caps};

const SMALL: Spec = Spec::new(MS, 100 * MS);
/// The rights of a capability to a context, apart from its bands.
const PLAIN: u16 = rights::CALL | rights::WRITE | rights::GRANT;

/// The manifest gives this process band 7. From there bands can only be lowered.
pub fn given() -> Outcome {
    let top = context()?;
    let three = new_context(&SMALL.criticality(3))?;
    let below = three.create(&SMALL.criticality(3))?.context().doing("its own band")?;
    refuses_band("three", &three, 4)?;
    refuses_band("what it made", &below, 4)?;
    drop(below);
    let lowest = three.create(&SMALL)?.context().doing("band 0")?;
    refuses_band("one of band 0", &lowest, 1)?;
    drop(lowest);

    let more = PLAIN | rights::up_to_band(4);
    refused("a copy with a band more", three.cap().copy(more, 0), TransportError::NotPermitted)?;
    for bit in [5, 6, 7, 15] {
        let unknown = top.cap().copy(PLAIN | 1 << bit, 0);
        refused("a right that does not exist", unknown, TransportError::BadFlags)?;
    }
    let plain = SchedulingContext::of(three.cap().copy(PLAIN, 0).doing("copy")?);
    refuses_band("a copy without bands", &plain, 1)?;
    changes(&three, &plain)?;
    children(&three, &plain)?;
    markers!("context_bands=ok");
    Ok(())
}

/// Fails unless creating contexts in `band` and above is refused, without taking any resource.
fn refuses_band(who: &str, maker: &SchedulingContext, band: u8) -> Outcome {
    let before = kit::system()?.contexts().doing("contexts")?.len();
    for band in band..=7 {
        let made = maker.create(&SMALL.criticality(band))?;
        ensure!(made.result == R::Unauthorized, "{who} creates in band {band}: {made:?}");
    }
    let after = kit::system()?.contexts().doing("contexts")?.len();
    ensure!(before == after, "{who} was refused, and there are {after} contexts, not {before}");
    Ok(())
}

/// A context's band may be kept or lowered; to raise it, the capability needs the right.
fn changes(three: &SchedulingContext, plain: &SchedulingContext) -> Outcome {
    let band = || -> Outcome<u8> { Ok(three.info()?.ok()?.spec.criticality) };
    let larger = Spec::new(2 * MS, 100 * MS);
    ensure!(three.reconfigure(&SMALL.criticality(4))?.result == R::Unauthorized, "band 3 became 4");
    plain.reconfigure(&larger.criticality(3))?.ok().doing("another budget in the same band")?;
    ensure!(plain.reconfigure(&SMALL.criticality(4))?.result == R::Unauthorized, "band 3 became 4 by a copy");
    ensure!(band()? == 3, "a refused change left band {}", band()?);
    plain.reconfigure(&SMALL)?.ok().doing("down to band 0")?;
    ensure!(plain.reconfigure(&SMALL.criticality(1))?.result == R::Unauthorized, "band 0 became 1 by a copy");
    ensure!(band()? == 0, "a refused change left band {}", band()?);
    three.reconfigure(&SMALL.criticality(3))?.ok().doing("back to band 3, with the right")?;
    Ok(())
}

/// Templates and grants reach no higher band than the capability that they are made from.
fn children(three: &SchedulingContext, plain: &SchedulingContext) -> Outcome {
    let spawner: ProcessSpawner = caps::any()?;
    let ordinary = || machine::ordinary(rt::args::program(), "ordinary").arg("band").arg("0");
    for (maker, band) in [(three, 4), (plain, 1)] {
        let made = ordinary().template(SMALL.criticality(band), maker).spawn(&spawner);
        raised("a template of a higher band", made.map(|_| ()), Exception::Failed)?;
        let rights = PLAIN | rights::up_to_band(band);
        let made = ordinary().grant("raised", maker.cap(), rights, 0).spawn(&spawner);
        raised("a grant with a band more", made.map(|_| ()), Exception::InvalidArgument)?;
    }
    let child =
        ordinary().template(SMALL.criticality(3), three).spawn(&spawner).doing("a template of band 3")?;
    kit::succeeds("a child in band 3 that may not create there", &child)?;
    let child = kit::start(rt::args::program(), &["band", "7"], &[])?;
    kit::succeeds("a child with everything", &child)
}

/// Role `band N`: this process may create up to band N.
pub fn reaches(band: u8) -> Outcome {
    let own = context()?;
    drop(own.create(&SMALL.criticality(band))?.context().doing("its band")?);
    if band < 7 { refuses_band("a child", &own, band + 1) } else { Ok(()) }
}
