//! The socket's name, which somebody may take away from a server that lives.
//!
//! Clients that are connected do not notice; new ones find nothing. The kernel tells when the file or its directory
//! goes or is renamed. What happens further up it does not tell, so while there are clients the name is looked at now and
//! then too. Looking is done by another thread: the name may be on a file system that does not answer.

use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::{fs, io};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::sync::oneshot;
use tracing::{debug, info, warn};

use super::state::Server;
use crate::shm::readable::Readable;

/// A file that has to keep its name.
#[derive(Clone, Debug)]
pub(super) struct Named {
    /// What it is, for the log.
    pub(super) what: &'static str,
    pub(super) path: PathBuf,
    /// Device and inode.
    pub(super) identity: (u64, u64),
}

/// What has become of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Kept,
    Gone,
    Replaced,
}

impl Named {
    /// What is there now. A name that cannot be looked at says nothing.
    fn look(&self) -> Option<State> {
        match fs::symlink_metadata(&self.path) {
            Ok(found) if (found.dev(), found.ino()) == self.identity => Some(State::Kept),
            Ok(_) => Some(State::Replaced),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                Some(State::Gone)
            }
            Err(_) => None,
        }
    }

    fn say(&self, state: State) {
        let (what, path) = (self.what, self.path.display());
        match state {
            State::Kept => info!(%path, "{what} has its name again"),
            State::Gone => warn!(
                %path,
                "{what} was removed or moved by somebody: connected clients carry on, no other finds this server; \
                 restart it"
            ),
            State::Replaced => warn!(
                %path,
                "something else was put in the place of {what}: connected clients carry on, no other finds this \
                 server; restart it on a path of its own"
            ),
        }
    }
}

/// Begins to watch, before anybody is told that the server is ready, and goes on until it stops.
pub(super) fn start(server: &Rc<Server>, names: Vec<Named>) {
    let told = match Told::new(&names) {
        Ok(told) => Some(told),
        Err(error) => {
            debug!(%error, "the socket's name is only looked at while there are clients");
            None
        }
    };
    // What was taken away before it was watched is found by a first look.
    server.look_at_names.notify_one();
    tokio::task::spawn_local(watch(Rc::clone(server), names, told));
}

async fn watch(server: Rc<Server>, names: Vec<Named>, told: Option<Told>) {
    let mut states = vec![State::Kept; names.len()];
    loop {
        let news = async {
            match &told {
                Some(told) if told.news().await.is_ok() => {}
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            () = news => {}
            () = server.look_at_names.notified() => {}
        }
        let asked = names.clone();
        let (tell, told) = oneshot::channel();
        // Detached: one that hangs is left behind when the server stops. Without a thread there is no look this time.
        let thread = std::thread::Builder::new().name("kvasir-names".into());
        let _ = thread.spawn(move || {
            let _ = tell.send(asked.iter().map(Named::look).collect::<Vec<_>>());
        });
        let looked = told.await.unwrap_or_default();
        if server.is_draining() {
            return;
        }
        for ((named, before), now) in names.iter().zip(&mut states).zip(looked) {
            if let Some(now) = now.filter(|now| now != before) {
                *before = now;
                named.say(now);
            }
        }
    }
}

/// The kernel's notices about the files and the directories that they are in.
struct Told {
    inotify: Inotify,
    readable: Readable,
}

impl Told {
    fn new(names: &[Named]) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        let moved = AddWatchFlags::IN_MOVE_SELF | AddWatchFlags::IN_DELETE_SELF;
        for named in names {
            // A file that is open loses its last name without being deleted; the number of its names tells.
            let flags = moved | AddWatchFlags::IN_ATTRIB | AddWatchFlags::IN_DONT_FOLLOW;
            inotify.add_watch(&named.path, flags)?;
            // Only the directory itself: what others do in it would wake an idle server.
            if let Some(parent) = named
                .path
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty())
            {
                inotify.add_watch(parent, moved)?;
            }
        }
        let readable = Readable::new(inotify.as_fd().try_clone_to_owned()?)?;
        Ok(Self { inotify, readable })
    }

    async fn news(&self) -> io::Result<()> {
        self.readable.news().await?;
        // Which of them it was does not matter. Empty is an error of a descriptor that does not block.
        while self.inotify.read_events().is_ok_and(|events| !events.is_empty()) {}
        Ok(())
    }
}
