//! Calls that are about no memory: events, waits between streams, questions.
//!
//! Main types: none. Neighbours: `frames` and `mallocs` have the rest.

use concertina_vmm::{Call, Driver as _, DriverError};

use super::clock::Times;
use super::report::Load;
use super::session::{Session, Subject};

pub(super) fn measure(session: &mut Session<'_>) -> Result<(), DriverError> {
    let (cuda, [stream, other]) = (session.cuda, session.streams);
    let [mut info, mut create, mut record, mut query, mut wait, mut synchronize, mut capture, mut destroy] =
        Times::none();
    while session.goes_on(info.len()) {
        info.time(|| cuda.memory_info())?;
        let event = create.time(|| cuda.event_create())?;
        record.time(|| cuda.event_record(&event, stream))?;
        wait.time(|| cuda.stream_wait(other, &event))?;
        query.time(|| cuda.event_query(&event))?;
        synchronize.time(|| cuda.event_synchronize(&event))?;
        capture.time(|| cuda.capture_status(stream))?;
        destroy.time(|| drop(event));
    }
    let all = [
        (Call::MemoryInfo.name(), info),
        (Call::EventCreate.name(), create),
        (Call::EventRecord.name(), record),
        (Call::StreamWait.name(), wait),
        (Call::EventQuery.name(), query),
        (Call::EventSynchronize.name(), synchronize),
        (Call::CaptureStatus.name(), capture),
        ("event_destroy", destroy),
    ];
    for (call, times) in all {
        session.note(Subject::one(call, Load::Idle, 0), times);
    }
    Ok(())
}
