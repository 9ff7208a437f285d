-- Version 10: a repeated publish by SQL is confirmed only when the event is on a synchronous standby.

-- Publishes an event in the caller's own transaction, in any language:
--   SELECT redrive.publish('order.created', '{"order": 7}');
-- Publishing an id twice stores one event. Types and limits are those of the library.
CREATE OR REPLACE FUNCTION redrive.publish(
  type text, payload json, id uuid DEFAULT NULL, metadata json DEFAULT NULL, due timestamptz DEFAULT NULL
) RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
  new_id uuid := coalesce(publish.id, redrive.new_id());
  now_ms bigint := redrive.now_ms();
  due_ms bigint := coalesce((extract(epoch FROM publish.due) * 1000)::bigint, now_ms);
  new_key bigint;
BEGIN
  IF publish.type IS NULL OR octet_length(publish.type) NOT BETWEEN 1 AND 255
     OR publish.type ~ '[[:space:][:cntrl:]*]' THEN
    RAISE EXCEPTION '% is not an event type: use 1 to 255 bytes without white space and *, such as order.created',
      coalesce(quote_literal(left(publish.type, 64)), 'NULL') USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF publish.payload IS NULL THEN
    RAISE EXCEPTION 'the payload is missing: pass JSON, for example the JSON value null'
      USING ERRCODE = 'null_value_not_allowed';
  END IF;
  IF publish.metadata IS NOT NULL AND (json_typeof(publish.metadata) <> 'object' OR EXISTS (
       SELECT 1 FROM json_each(publish.metadata) AS entry WHERE json_typeof(entry.value) <> 'string')) THEN
    RAISE EXCEPTION 'metadata must be a JSON object whose values are strings'
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  INSERT INTO redrive.event (id, type, status, due_at, ready_at, created_at, updated_at)
  VALUES (new_id, publish.type, 0, due_ms, greatest(due_ms, 0), now_ms, now_ms)
  ON CONFLICT ON CONSTRAINT event_id_key DO NOTHING RETURNING key INTO new_key;
  IF new_key IS NOT NULL THEN
    INSERT INTO redrive.payload (event_key, payload, metadata)
    VALUES (new_key, publish.payload::text, publish.metadata::text);
    PERFORM pg_notify('@channel@', '');
  ELSE
    -- The event was found, not written: this entry makes the caller's commit wait until it is on a synchronous standby.
    PERFORM pg_logical_emit_message(true, 'redrive', '');
  END IF;
  RETURN new_id;
END $$;
