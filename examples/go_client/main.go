// Turns orders into invoices with franz-go.
//
// Arguments: bootstrap, source, sink, group, and `bug` or `fixed`.
package main

import (
	"context"
	"errors"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const batch = 50

func main() {
	bootstrap, source, sink, group, variant := os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5]
	going, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	options := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...),
		kgo.ConsumerGroup(group),
		// A restarted member takes over at once, instead of after the session timeout.
		kgo.InstanceID("1"),
		kgo.ConsumeTopics(source),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.DefaultProduceTopic(sink),
		kgo.TransactionalID(group),
	}
	var err error
	if variant == "fixed" {
		err = together(going, append(options, kgo.RequireStableFetchOffsets()))
	} else {
		err = apart(going, options)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		log.Fatal(err)
	}
}

// The session sends the offsets with the transaction, and aborts it after a rebalance.
func together(going context.Context, options []kgo.Opt) error {
	session, err := kgo.NewGroupTransactSession(options...)
	if err != nil {
		return err
	}
	defer session.Close()
	for {
		orders := session.PollRecords(going, batch)
		if going.Err() != nil {
			return going.Err()
		}
		if err := session.Begin(); err != nil {
			return err
		}
		written := kgo.AbortingFirstErrPromise(session.Client())
		orders.EachRecord(func(order *kgo.Record) {
			session.Produce(going, invoice(order), written.Promise())
		})
		if _, err := session.End(going, written.Err() == nil); err != nil {
			return err
		}
	}
}

// The bug: outputs are transactional, and a timer commits the offsets, whenever that was.
func apart(going context.Context, options []kgo.Opt) error {
	client, err := kgo.NewClient(append(options, kgo.DisableAutoCommit())...)
	if err != nil {
		return err
	}
	defer client.CloseAllowingRebalance()
	timer := time.NewTicker(5 * time.Second)
	defer timer.Stop()
	go func() {
		for range timer.C {
			if err := client.CommitUncommittedOffsets(going); err != nil && going.Err() == nil {
				log.Print(err)
			}
		}
	}()
	for {
		orders := client.PollRecords(going, batch)
		if going.Err() != nil {
			return going.Err()
		}
		if err := client.BeginTransaction(); err != nil {
			return err
		}
		orders.EachRecord(func(order *kgo.Record) {
			client.Produce(going, invoice(order), nil)
		})
		if err := client.Flush(going); err != nil {
			return err
		}
		if err := client.EndTransaction(going, kgo.TryCommit); err != nil {
			return err
		}
	}
}

func invoice(order *kgo.Record) *kgo.Record {
	return &kgo.Record{Key: order.Key, Value: append([]byte("invoice of "), order.Value...)}
}
