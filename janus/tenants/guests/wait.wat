;; Attack: waits for a message that nobody sends. `grant messages`.
(module
  (import "janus" "channel" (func $channel (param i32) (result i32)))
  (import "janus" "receive" (func $receive (param i32 i32 i32) (result i32)))
  (memory 1)
  (func (export "_start") (drop (call $channel (i32.const 1)))
    (drop (call $receive (i32.const 0) (i32.const 0) (i32.const 8)))))
