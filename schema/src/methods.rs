//! Numbers of the methods: the ordinals of `capos.capnp`, which a test compares with these.

macro_rules! methods {
    ($($interface:ident $module:ident { $($name:ident = $number:literal $method:literal),* $(,)? })*) => {
        $(
            #[doc = concat!("Methods of `", stringify!($interface), "`.")]
            pub mod $module {
                $(
                    #[doc = concat!("`", stringify!($interface), ".", $method, "`.")]
                    pub const $name: u32 = $number;
                )*
            }
        )*

        /// Every method: interface, name, number.
        pub const ALL: &[(&str, &str, u32)] = &[$($((stringify!($interface), $method, $number)),*),*];
    };
}

methods! {
    Timer timer { NOW = 0 "now" }
    ThreadSpawner thread_spawner { CREATE = 0 "create" }
    ThreadHandle thread_handle { JOIN = 0 "join", EXIT_CODE = 1 "exitCode" }
    ThreadControl thread_control {
        GET_FS_BASE = 0 "getFsBase",
        SET_FS_BASE = 1 "setFsBase",
        EXIT_THREAD = 2 "exitThread",
        SET_AFFINITY = 3 "setAffinity",
    }
    ProcessSpawner process_spawner { SPAWN = 0 "spawn", PROGRAMS = 1 "programs" }
    ProcessHandle process_handle {
        WAIT = 0 "wait",
        KILL = 1 "kill",
        INFO = 2 "info",
        EXIT_CODE = 3 "exitCode",
        EXIT = 4 "exit",
    }
    VirtualMemory virtual_memory { MAP = 0 "map", UNMAP = 1 "unmap", PROTECT = 2 "protect" }
    MemoryObject memory_object { MAP = 0 "map", UNMAP = 1 "unmap", PROTECT = 2 "protect", INFO = 3 "info" }
    UserSession user_session {
        INFO = 0 "info",
        LOGOUT = 1 "logout",
        PROCESSES = 2 "processes",
        KILL = 3 "kill",
        QUOTAS = 4 "quotas",
    }
    SystemInfo system_info {
        INFO = 0 "info",
        PROCESSES = 1 "processes",
        THREADS = 2 "threads",
        CPUS = 3 "cpus",
        COUNTERS = 4 "counters",
        CONTEXTS = 5 "contexts",
        FAIL_ALLOCATION = 6 "failAllocation",
    }
    Factory factory {
        CREATE_ENDPOINT = 0 "createEndpoint",
        CREATE_MEMORY_OBJECT = 1 "createMemoryObject",
        CREATE_SESSION = 2 "createSession",
    }
    Power power { OFF = 0 "off" }
    BootManifest boot_manifest { READ = 0 "read" }
    SchedulingPolicy scheduling_policy {
        SET_WEIGHT = 0 "setWeight",
        SET_LATENCY_CLASS = 1 "setLatencyClass",
        SNAPSHOT = 2 "snapshot",
    }
    SchedulingContext scheduling_context {
        INFO = 0 "info",
        CREATE = 1 "create",
        BIND_CALLER_THREAD = 2 "bindCallerThread",
        UNBIND = 3 "unbind",
        RECONFIGURE = 4 "reconfigure",
        REVOKE = 5 "revoke",
        DRAIN_NOTIFICATIONS = 6 "drainNotifications",
        WAIT_NOTIFICATION = 7 "waitNotification",
        CONSUMED = 8 "consumed",
        YIELD_TO = 9 "yieldTo",
        BIND_THREAD = 10 "bindThread",
    }
}
