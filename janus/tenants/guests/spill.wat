;; Attack: writes without end. `grant io`.
(module
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (memory 1)
  (data (i32.const 0) "\00\00\00\00\00\00\01\00")
  (func (export "_start")
    (loop (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8))) (br 0))))
